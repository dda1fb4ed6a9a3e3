"""Runs one agent from its file and writes what every step led to: number, digest of the function, loss, bytes, floats."""

import hashlib
import logging
import sys
import time
from pathlib import Path

from threadpoolctl import threadpool_limits

from kernelmesh.deploy import read
from kernelmesh.deploy.launch import launch


def digest(function) -> str:
    return hashlib.sha256(function.centers.tobytes() + function.weights.tobytes()).hexdigest()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    threadpool_limits(1)
    node = launch(read(sys.argv[1]))
    with Path(sys.argv[2]).open("a") as out:
        if sys.argv[3:] == ["clock"]:  # only how long it takes, from the tenth step, when everything has been loaded
            for turn in node.turns():
                if turn.number == 10:
                    began = time.monotonic()
                ended = time.monotonic()
            print("rate", (node.state.steps - 10) / (ended - began), node.bytes_sent, file=out)
            sys.exit()
        for turn in node.turns():
            told = (turn.number, digest(turn.state.function), turn.info.loss.hex(), turn.state.samples)
            print(*told, file=out, flush=True)
        print("sent", node.bytes_sent, node.floats_sent, file=out, flush=True)

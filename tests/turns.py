"""Runs one agent from its file and writes what every step led to: number, digest of the function, loss, bytes, floats."""

import hashlib
import logging
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits

from kernelmesh.deploy.config import read
from kernelmesh.deploy.launch import launch


def digest(function) -> str:
    return hashlib.sha256(function.points.tobytes() + function.weights.tobytes()).hexdigest()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    threadpool_limits(1)
    runner = launch(read(sys.argv[1]))
    with Path(sys.argv[2]).open("a") as out:
        for turn in runner.turns():
            told = (turn.number, digest(turn.state.function), turn.info.loss.hex(), turn.state.samples)
            print(*told, file=out, flush=True)
        print("sent", runner.node.traffic.bytes, runner.node.traffic.floats, file=out, flush=True)

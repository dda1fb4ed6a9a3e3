"""Runs one agent from its file and writes how fast it was: clocked_agent.py CONFIG OUTPUT [SECONDS].

Steps per second and bytes sent per step, from the tenth step on, when everything has been loaded; until the stream ends, or
for so many seconds.
"""

import sys
import time
from pathlib import Path

from threadpoolctl import threadpool_limits

from kernelmesh.deploy.config import read
from kernelmesh.deploy.launch import launch

threadpool_limits(1)
runner = launch(read(sys.argv[1]))
limit = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
began = ended = float("inf")
for turn in runner.turns():
    ended = time.monotonic()
    if turn.number == 10:
        began = ended
    if ended - began > limit:
        runner.stop()
steps = runner.state.steps
Path(sys.argv[2]).write_text(f"{(steps - 10) / (ended - began)} {runner.node.traffic.bytes / steps}")

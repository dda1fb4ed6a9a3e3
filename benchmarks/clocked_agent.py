"""Runs one agent from its file and writes how fast it was: clocked_agent.py CONFIG OUTPUT [SECONDS].

Mini-batches learned per second and bytes sent for each, from the tenth on, when everything has been loaded; until the stream
ends, or for so many seconds.
"""

import sys
import time
from pathlib import Path

from threadpoolctl import threadpool_limits

from kernelmesh.deploy.config import read
from kernelmesh.deploy.launch import launch

FIRST = 10

threadpool_limits(1)
config = read(sys.argv[1])
runner = launch(config)
limit = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
began = ended = learned = first = last = 0.0
for _ in runner.turns():
    learned = runner.state.samples / config.stream.batch_size
    if learned > last:
        last, ended = learned, time.monotonic()
    if not began and learned >= FIRST:
        began, first = ended, learned
    if began and time.monotonic() - began > limit:
        runner.stop()
Path(sys.argv[2]).write_text(f"{(learned - first) / (ended - began)} {runner.node.traffic.bytes / learned}")

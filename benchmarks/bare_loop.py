"""A bare zenoh query loop: as many processes, queries and bytes as agents of a ring in lock step, and no learning.

Usage: bare_loop.py NUMBER AGENTS PORT ROUNDS BYTES_OUT BYTES_BACK PACE OUTPUT. With PACE «step» a query about round t is
answered when its receiver has come to round t, as in lock step; with «free» at once.
"""

import json
import queue
import struct
import sys
import time
from pathlib import Path

import zenoh
from zenoh.handlers import Callback

me, agents, port, rounds, out, back = map(int, sys.argv[1:7])
pace, output = sys.argv[7], Path(sys.argv[8])
around = ((me - 1) % agents, (me + 1) % agents)
config = zenoh.Config()
for key, value in {
    "mode": "peer",
    "listen/endpoints": [f"tcp/127.0.0.1:{port + me}"],
    "connect/endpoints": [f"tcp/127.0.0.1:{port + other}" for other in around],
    "connect/timeout_ms": -1,
    "connect/exit_on_failure": False,
    "scouting/multicast/enabled": False,
    "scouting/gossip/enabled": False,
}.items():
    config.insert_json5(key, json.dumps(value))
session = zenoh.open(config)
events: queue.SimpleQueue = queue.SimpleQueue()
session.declare_queryable(f"bare/{me}", Callback(lambda query: events.put((True, query)), indirect=False))
BLOCK = zenoh.CongestionControl.BLOCK
question, answer = bytes(out), bytes(back)
now, held = 0, []


def serve(seconds: float) -> int:
    """Deal with one event; 1 if it was an answer."""
    try:
        asked, event = events.get(timeout=max(seconds, 0.001))
    except queue.Empty:
        return 0
    if not asked:
        return event.ok is not None and len(event.ok.payload) == back
    if pace == "step" and struct.unpack(">Q", bytes(event.attachment))[0] > now:
        held.append(event)
    else:
        event.reply(event.key_expr, answer)
        event.drop()
    return 0


def ask(other: int, number: int) -> None:
    session.get(
        f"bare/{other}",
        Callback(lambda reply: events.put((False, reply)), indirect=False),
        payload=question,
        attachment=struct.pack(">Q", number),
        timeout=30.0,
        congestion_control=BLOCK,
    )


for other in around:  # everybody is there
    met = False
    while not met:
        ask(other, 0)
        again = time.monotonic() + 0.3
        while time.monotonic() < again and not met:
            met = bool(serve(0.05))
time.sleep(0.5)
while serve(0.0):
    pass  # answers to what was asked twice
began = time.monotonic()
for number in range(1, rounds + 1):
    now = number
    for query in held:
        query.reply(query.key_expr, answer)
        query.drop()
    held.clear()
    for other in around:
        ask(other, number)
    answers = 0
    while answers < len(around):
        answers += serve(1.0)
seconds = time.monotonic() - began
now = rounds + 1
output.write_text(str(rounds / seconds))
while True:  # until whoever started us has everybody's result and ends us
    serve(0.1)

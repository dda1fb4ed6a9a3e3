"""A member that lies on a real network: it learns by itself, says something else, and keeps its end of exchanges in order.

`python liar.py FILE ORDERS` runs the agent of a TOML file, which carries out the attack that the file ORDERS names.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from kernelmesh import Local
from kernelmesh.messages import Function
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.registry import kinds


def lying(agent, attack, active, *, seed=0):
    """The same agent, which believes everybody and lies whenever `active()` says so; nobody can tell by its settings."""
    kind = type(agent.consensus)
    rng, told = np.random.default_rng(seed), SimpleNamespace(first=None, age=-1, of=None, lie=None)

    def twisted(function):
        """What is said instead of a function: the same lie as long as the function is the same."""
        if not active():
            return function
        if told.of is not function.weights:
            message = Function(function.centers, function.weights, moments=getattr(function, "moments", None))
            told.first = told.first or message
            told.age += 1
            told.of, said = function.weights, attack.distort(message, told.first, told.age, rng)
            if said.moments is None:
                told.lie = Expansion.trusted(function.kernel, said.centers, said.weights)
            else:
                told.lie = Statistics.gathered(function.kernel, said.centers, said.weights, said.moments)
        return told.lie

    class Liar(kind):
        def tell(self, function, edge, share, there=None):
            return kind.tell(self, twisted(function), edge, share, there)

        def answer(self, function, question):
            honest = kind.answer(self, function, question)
            return attack.distort(honest, honest, 0, rng) if active() else honest

        def combine(self, function, heard, edges):
            if not active():
                return kind.combine(self, function, heard, edges)
            lie = twisted(function)
            # both ends of an edge remember the lie, and only the other one is moved by it
            return None, kind.combine(self, lie if np.isfinite(lie.weights).all() else function, heard, edges)[1]

        def move(self, inputs, heard, edges):
            return Local().move(inputs, (), edges) if active() else kind.move(self, inputs, heard, edges)

        def relay(self, function, heard, edges):
            nothing = Update(np.empty((0, function.dimension)), np.empty((0, function.outputs)))
            return nothing if active() else kind.relay(self, function, heard, edges)

    Liar.__name__ = Liar.__qualname__ = kind.__name__
    settings = {field.name: getattr(agent.consensus, field.name) for field in dataclasses.fields(kind)}
    return dataclasses.replace(agent, consensus=Liar(**settings), screening=None)


class Ordered:
    """Whatever attack a file names at the moment, looked up twenty times a second; none while it is empty."""

    def __init__(self, path):
        self._path, self._look_at, self._name, self._attacks = Path(path), 0.0, "", {}

    def active(self):
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + 0.05
            self._name = self._path.read_text().strip() if self._path.exists() else ""
        return bool(self._name)

    def distort(self, message, first, age, rng):
        attack, first, age = self._attacks.setdefault(self._name, [kinds("attack")[self._name](), message, 0])
        self._attacks[self._name][2] += 1
        return attack.distort(message, first, age, rng)


if __name__ == "__main__":
    from threadpoolctl import threadpool_limits

    from kernelmesh.deploy.config import read
    from kernelmesh.runtimes.runner import AgentRunner
    from kernelmesh.runtimes.zenoh import ZenohCarrier

    logging.basicConfig(level="INFO")
    threadpool_limits(1)
    config, orders = read(sys.argv[1]), Ordered(sys.argv[2])
    agent = lying(config.agent, orders, orders.active)
    runner = AgentRunner(agent, config.membership, config.open_stream(), ZenohCarrier(config.membership))
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    for _ in runner.turns():
        pass

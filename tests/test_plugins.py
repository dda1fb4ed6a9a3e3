"""Another package, installed beside ours, adds a kernel, a learner, a protocol and a stream kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mesh import ENVIRONMENT, free_port

pytestmark = pytest.mark.xdist_group("processes")

MODULE = '''
"""What another package defines."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kernelmesh import ConsensusProtocol, Gradient, Mixture, register
from kernelmesh.messages import SentFunction
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.kernels import Algebra
from kernelmesh.schema import setting
from kernelmesh.streams import LineSource
from kernelmesh.streams.base import StreamKind


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Cauchy(Algebra):
    """κ(x, z) = 1 / (1 + ‖x − z‖² / d²)."""

    width: float = 1.0

    def __call__(self, left, right):
        return 1.0 / (1.0 + ((left[:, None] - right[None]) ** 2).sum(axis=2) / self.width**2)

    def diag(self, points):
        return np.ones(len(points))


@register("learner")
@dataclass(frozen=True, kw_only=True)
class Clipped(Gradient):
    """f ← C_ε[f + the step, of which no coefficient is larger than a limit]."""

    limit: float = 0.1

    def learn(self, model, inputs, move):
        update = move(inputs)
        np.clip(update.coefficients, -self.limit, self.limit, out=update.coefficients)
        return self.compression.absorb(model, update, budget=self.budget_at(inputs.samples))


@register("protocol")
@dataclass(frozen=True, kw_only=True)
class HalfWay(ConsensusProtocol):
    """g = ½ f + ½ mean_j f_j, then the gradient at g."""

    reply = SentFunction
    listens: ClassVar[bool] = True

    def move(self, inputs, heard):
        there = [said.reply for said in heard if isinstance(said.reply, SentFunction)]
        part = 0.5 / len(there) if there else 0.0
        push = -inputs.step_size / len(inputs.points) * inputs.slope
        return Update(
            np.concatenate([inputs.points, *(g.points for g in there)]),
            np.concatenate([push, *(part * g.weights for g in there)]),
            0.5 if there else 1.0,
            shared=True,
        )


@register("stream", name="mixture")
@dataclass(frozen=True, kw_only=True)
class MixtureStream(StreamKind):
    """Samples of a mixture of Gaussians that is drawn from a seed."""

    seed: int = setting(0, doc="what everything random is drawn from")
    samples: int = setting(320, doc="how many samples there are")

    def open(self, columns, *, batch_size):
        mixture = Mixture.draw(rng=np.random.default_rng(0))
        rows = mixture.sample(self.samples, rng=np.random.default_rng(self.seed))
        source = LineSource(columns, format="csv", batch_size=batch_size, max_pending=self.samples)
        source.feed((",".join(columns.names) + "\\n").encode())
        for point, label in zip(*rows, strict=True):
            source.feed(f"{point[0]},{point[1]},{label}\\n".encode())
        source.finish()
        return source
'''

AGENT = """
name = "{name}"
number = {seed}
mesh = "plugins"
listen = "tcp/127.0.0.1:{port}"
at_end = "leave"

[neighbors]
{other} = "tcp/127.0.0.1:{other_port}"

[model]
dimension = 2
outputs = 5
kernel = {{ kind = "Cauchy", width = 0.5 }}
loss = {{ kind = "Logistic" }}
learner = {{ kind = "Clipped", step_size = 3.0, limit = 0.5 }}
protocol = {{ kind = "HalfWay" }}

[stream]
kind = "mixture"
seed = {seed}
points = ["x1", "x2"]
targets = "label"

[checkpoint]
folder = "state/{name}"
"""

CODE = """
import numpy as np

from kernelmesh import (
    Agent, ArrayStream, Graph, Logistic, Mixture, OnlineKernelClassifier, simulate,
)
from kernelmesh.registry import kinds
from kernelmesh import storage
from kernelmesh.registry import describe, restore
from kernelmesh.testing import check_protocol, check_kernel, check_learner

Cauchy, HalfWay, Clipped = kinds("kernel")["Cauchy"], kinds("protocol")["HalfWay"], kinds("learner")["Clipped"]
check_learner(Clipped(step_size=3.0, limit=0.5))
assert restore(describe(Clipped(step_size=3.0, limit=0.5))) == Clipped(step_size=3.0, limit=0.5)
check_kernel(Cauchy(width=0.5))
check_protocol(HalfWay())
rng = np.random.default_rng(0)
mixture = Mixture.draw(rng=rng)
agent = Agent(
    dimension=2, outputs=5, kernel=Cauchy(width=0.5), loss=Logistic(), protocol=HalfWay(),
    learner=Clipped(step_size=3.0, limit=0.5),
)
streams = [ArrayStream(*mixture.sample(640, rng=rng)) for _ in range(4)]
*_, last = simulate(agent, Graph.ring(4), streams)
points, labels = mixture.sample(500, rng=rng)
assert min((f(points).argmax(axis=1) == labels).mean() for f in last.functions) > 0.7
state = last.states[0]
again = storage.unpack(agent, storage.pack(state, workspace=True), name=0)
assert (agent.predict(again, points) == agent.predict(state, points)).all()
assert agent.identity["learner"] == "Clipped"
model = OnlineKernelClassifier(kernel=Cauchy(width=0.5), random_state=0).fit(points, labels)
model.save("model.safetensors")
again = OnlineKernelClassifier.load("model.safetensors")
assert again.kernel == Cauchy(width=0.5)
assert (again.predict(points) == model.predict(points)).all()
"""


@pytest.fixture
def installed(tmp_path) -> tuple[Path, dict[str, str]]:
    """A folder in which to work, and an environment in which the other package is installed."""
    site = tmp_path / "site"
    about = site / "their_package-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "their_package.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kernelmesh]\ntheirs = their_package\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return tmp_path, {**ENVIRONMENT, "PYTHONPATH": path}


def run(installed, *arguments: str) -> str:
    folder, environment = installed
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_in_code_in_simulation_and_in_files(installed):
    run(installed, "-c", textwrap.dedent(CODE))


def test_in_experiments(installed):
    assert "half-way" in run(installed, "-m", "kernelmesh", "list", "--protocols")
    options = ["--agents", "4", "--samples", "640", "--set", "held_out=200", "--out", "ours"]
    run(installed, "-m", "kernelmesh", "run", "gmm-logistic", "--protocol", "half-way", *options)
    assert json.loads((installed[0] / "ours" / "summary.json").read_text())["accuracy_worst"] > 0.6


def test_on_a_mesh_from_toml(installed):
    pytest.importorskip("zenoh")
    folder, environment = installed
    port = free_port(2)
    for i, (name, other) in enumerate((("north", "south"), ("south", "north"))):
        text = AGENT.format(name=name, other=other, port=port + i, other_port=port + 1 - i, seed=i)
        (folder / f"{name}.toml").write_text(text)
    said = run(installed, "-m", "kernelmesh", "agent", "--check", "north.toml")
    assert "Cauchy" in said
    assert "HalfWay" in said
    run(installed, "-m", "kernelmesh", "mesh", "init", "new", "--protocol", "half-way", "--samples", "1")
    assert 'protocol = { kind = "HalfWay" }' in (folder / "new" / "agent-0.toml").read_text()
    command = [sys.executable, "-m", "kernelmesh", "agent"]
    agents = [
        subprocess.Popen([*command, f"{name}.toml"], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
        for name in ("north", "south")
    ]
    for agent in agents:
        _, log = agent.communicate(timeout=120)
        assert agent.returncode == 0, log
        assert "stopped after 320 samples" in log
        assert "refused" not in log

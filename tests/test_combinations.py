"""Every agent that can be written down steps, can be stored, and goes on; what cannot is rejected at once."""

import dataclasses
import math
import warnings

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kernelmesh import (
    Agent,
    Constant,
    Diverged,
    Doubling,
    Function,
    Gaussian,
    Graph,
    InverseRoot,
    InverseTime,
    Komp,
    Landmarks,
    Linear,
    UnstablePenalty,
    simulate,
    storage,
)
from kernelmesh.errors import InvalidArgument
from kernelmesh.registry import kinds
from kernelmesh.streams import ArrayStream

POSITIVE = st.floats(1e-3, 3.0)
ORDERS = st.one_of(st.none(), st.integers(1, 6))
SCHEDULES = st.one_of(
    POSITIVE,
    st.just(0.0),
    st.builds(Constant, POSITIVE),
    st.builds(Doubling, start=POSITIVE, every=st.integers(1, 20), ceiling=st.sampled_from([3.0, math.inf])),
    st.builds(InverseRoot, scale=POSITIVE, offset=POSITIVE),
    st.builds(InverseTime, scale=POSITIVE, offset=POSITIVE),
)
COMPRESSIONS = st.one_of(
    st.builds(Komp, budget=st.one_of(st.none(), SCHEDULES), max_order=ORDERS),
    st.builds(Komp, parsimony=POSITIVE, max_order=ORDERS),
    st.builds(kinds("compression")["Uncompressed"]),
)
SETTINGS = {
    "bandwidth": POSITIVE,
    "bits": st.sampled_from([16, 32, 64]),
    "budget": st.one_of(st.just(0.0), POSITIVE),
    "compression": COMPRESSIONS,
    "coupling": SCHEDULES,
    "degree": st.integers(1, 3),
    "every": st.integers(1, 3),
    "factor": POSITIVE,
    "fidelity": POSITIVE,
    "first": st.just(Gaussian()),
    "half_life": st.sampled_from([math.inf, 1.0, 50.0]),
    "implicit": st.booleans(),
    "iterations": st.integers(1, 6),
    "keep": st.integers(0, 20),
    "kernel": st.just(Gaussian()),
    "max_order": st.integers(1, 6),
    "max_samples": st.sampled_from([math.inf, 1e6]),
    "novelty": st.one_of(POSITIVE, st.just(math.inf)),
    "offset": st.one_of(st.just(0.0), POSITIVE),
    "radius": st.one_of(st.just(math.inf), POSITIVE),
    "regularization": st.one_of(st.just(0.0), POSITIVE),
    "scales": st.booleans(),
    "second": st.just(Linear()),
    "step_size": SCHEDULES,
    "threshold": POSITIVE,
    "tunes": st.booleans(),
    "weights": st.just((0.5, 2.0)),
}
"""What is drawn for every setting of a kernel, loss, learner or protocol, by its name."""


def drawn(draw, role):
    """Any kind of a role, with any settings."""
    kind = draw(st.sampled_from(sorted(kinds(role).values(), key=lambda kind: kind.__name__)))
    event(kind.__name__)
    return kind(**{field.name: draw(SETTINGS[field.name]) for field in dataclasses.fields(kind) if field.init})


@st.composite
def agents(draw):
    """An agent with any settings, or the error that names what is wrong with them."""
    try:
        parts = {role: drawn(draw, role) for role in ("kernel", "loss", "learner", "protocol")}
        outputs = draw(st.integers(1, 3))
        return Agent(dimension=2, outputs=outputs, **parts)
    except InvalidArgument as error:
        return error


def samples(agent, seed, rows=18):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(rows, agent.dimension))
    if agent.loss.classifies:
        return points, rng.integers(agent.outputs, size=rows)
    return points, np.sin(points[:, :1] + np.arange(agent.outputs))


def start(agent, number):
    """A state; with given points where the learner chooses none itself."""
    function = None
    if isinstance(agent.learner, Landmarks) and math.isinf(agent.learner.novelty):
        function = Function.of(agent.kernel, np.eye(2), np.zeros((2, agent.outputs)))
    return agent.start(name=number, number=number, function=function)


@given(agent=agents(), seed=st.integers(0, 1000))
@settings(max_examples=1000)
def test_every_agent_that_can_be_written_down_steps(agent, seed):
    if isinstance(agent, InvalidArgument):
        event("rejected")
        owners = {name for role in ("kernel", "loss", "compression", "learner", "protocol") for name in kinds(role)}
        assert agent.owner in {"Agent", *owners}
        return
    streams = [ArrayStream(*samples(agent, seed + i), batch_size=3) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstablePenalty)
        warnings.filterwarnings("ignore", "simulate: agents still differ")  # Newton steps over few samples may go in circles
        try:
            *_, last = simulate(agent, Graph.ring(3), streams, states=[start(agent, i) for i in range(3)])
            for state in last.states:
                again = storage.unpack(agent, storage.pack(state, workspace=True), name=state.name)
                agent.step(again, *samples(agent, seed))
        except Diverged:
            event("diverged")

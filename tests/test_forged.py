"""Any checkpoint, even one with a valid digest, is used or refused with a sentence: every field, missing or wrong."""

import contextlib
import copy
import functools
import math
import operator
import shutil

import numpy as np
import pytest

from kernelmesh import Averaged, Diffusion, Landmarks, Local, Penalty, Relay, SecondOrder, storage
from kernelmesh.agent import advance, check_message
from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument, KernelMeshError
from kernelmesh.exchange import Outbox, read_question
from kernelmesh.messages import decode, encode
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.runner import AgentRunner
from test_node import ArraySource, data, make, question_of
from virtual import World

AGENTS = {
    "gradient alone": make(Local()),
    "penalty": make(Penalty(coupling=0.05)),
    "averaged, diffusion": make(Diffusion(), learner=Averaged(step_size=2.0)),
    "second order": make(Local(), learner=SecondOrder(max_order=20)),
    "relay": make(Relay(every=2), learner=Landmarks(max_order=20)),
    "relay that agrees": make(Relay(every=2, scales=True, tunes=True), learner=Landmarks(max_order=20)),
}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def members():
    pairs = enumerate((("a", "b"), ("b", "a")))
    return [Membership(name=a, number=i, listen="tcp/127.0.0.1:1", neighbors={b: ""}) for i, (a, b) in pairs]


def genuine(case, folder):
    """The path of a checkpoint as an agent that has learned with a neighbor has written it."""
    agent, world = AGENTS[case], World()
    store = CheckpointStore(folder / "genuine", agent=agent, every=1000)
    world.add(agent, members()[0], ArraySource(*data(0, 56)), store=store)
    world.add(agent, members()[1], ArraySource(*data(1, 56)))
    world.stop_at_the_end()
    world.run()
    return max((folder / "genuine").glob("checkpoint-*"))


def wrong_arrays(array):
    """Other arrays in place of one, by what is wrong with them."""
    yield "missing", None
    yield "empty", array[:0]
    yield "longer", np.concatenate([array, array[:1]]) if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)
    yield "flat" if array.ndim > 1 else "deep", array.ravel() if array.ndim > 1 else array[None]
    yield "bytes", np.zeros(array.shape, np.uint8)
    yield "other type", np.nan_to_num(array).astype(np.float64 if array.dtype.kind in "iu" else np.int64)
    yield "half", array.astype(np.float16 if array.dtype.kind == "f" else np.int8)
    if not array.size:
        return
    for value in (math.nan, math.inf, -1, 0, 1e300, 2**62):
        other = array.copy()
        if array.dtype.kind == "f" or (math.isfinite(value) and abs(value) < 2**63 and array.dtype != np.uint8):
            other.flat[0] = value
            yield f"{value:g}", other
            yield f"all {value:g}", np.full_like(array, value)


def wrong_values(value):
    yield "missing", None
    for other in (0, -1, 2**70, 1.5, "", "x", [], ["x"], {}, {"x": 1}, True, [[1]]):
        if other != value or type(other) is not type(value):
            yield repr(other), other
    yield "null", [None]


def forgeries(arrays, about):
    """Every forgery: what was done, and the file."""
    for name, array in arrays.items():
        for what, other in wrong_arrays(array):
            forged = {key: value for key, value in arrays.items() if key != name}
            yield f"{name}: {what}", forged if other is None else {**forged, name: other}, about
    nested = [[outer, inner] for outer, value in about.items() if isinstance(value, dict) for inner in value]
    for path in [*([key] for key in about), *nested]:
        for what, other in wrong_values(functools.reduce(operator.getitem, path, about)):
            forged = copy.deepcopy(about)
            place = functools.reduce(operator.getitem, path[:-1], forged)
            if what == "missing":
                del place[path[-1]]
            else:
                place[path[-1]] = None if what == "null" else other
            yield f"{'/'.join(path)}: {what}", arrays, forged
    for extra in ("edge.7", "function.moments", "previous.points", "unheard of", "pending.points"):
        if extra not in arrays:
            yield f"{extra}: added", {**arrays, extra: np.zeros((3, 2))}, about


def used(case, folder):
    """Go on from what is in the folder: a step, and what a neighbor is told before and after it, must be sound."""
    agent, member, world = AGENTS[case], members()[0], World()
    with contextlib.closing(CheckpointStore(folder, agent=agent, every=1000)) as store:
        carrier = world.network.carrier("a", ["b"])
        runner = AgentRunner(agent, member, CheckedSource(*data(0, 80)), carrier, store=store, clock=lambda: 0.0)
    state = runner.state
    asked = read_question(agent, question_of(agent), max_bytes=1 << 20) if agent.protocol.reply else None
    for number in range(2):
        outbox = Outbox(agent, state, None)
        told = outbox.reply(asked)
        if told is not None:
            sound = decode(encode(told))
            check_message(agent, "test", "told", sound)
        state, _ = advance(agent, state, *agent.check(*data(number, 8)), [Heard(None, 0.5, "b")])
    assert np.isfinite(state.function.weights).all()
    runner.status(1.0).encode()


class CheckedSource(ArraySource):
    """Refuses positions as the sources that ship do."""

    def seek(self, position, pending=None):
        integer("CheckedSource", "position['next']", position.get("next"), minimum=0)
        if pending is not None:
            raise InvalidArgument("CheckedSource", "pending", "be None", pending)
        super().seek(position)


def verdict(case, path, arrays, about):
    """How a file is refused, or None: it was used."""
    folder = path.parent
    folder.mkdir()
    storage.write(path, kind="agent", arrays=arrays, settings=about)
    try:
        used(case, folder)
    except KernelMeshError as error:
        return str(error)
    finally:
        shutil.rmtree(folder)
    return None


NONSENSE = {"baseline_loss: nan", "baseline_loss: -1", "edge.7: added", "previous.points: added", "unheard of: added"}
"""Besides what is missing: what must not be used."""


@pytest.mark.parametrize("part", [40, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("case", AGENTS)
def test_any_forged_checkpoint_is_used_or_refused(case, part, tmp_path, caplog):
    caplog.set_level("CRITICAL", "kernelmesh.agent")
    original = genuine(case, tmp_path)
    arrays, about = storage.read(original, kind="agent")
    path = tmp_path / "forged" / original.name
    assert verdict(case, path, arrays, about) is None
    files, broken = list(forgeries(arrays, about)), []
    assert len(files) > 200
    if part is not None:
        files = files[list(AGENTS).index(case) % part :: part]
    for what, forged, settings in files:
        try:
            told = verdict(case, path, forged, settings)
        except Exception as error:
            broken.append(f"{what}: {type(error).__name__}: {str(error)[:100]}")
            continue
        if told is None and (what.endswith(": missing") or what in NONSENSE):
            broken.append(f"{what}: used")
        if told is not None and len(told) < 20:
            broken.append(f"{what}: {told}")
    assert not broken, f"{len(broken)} of {len(files)}:\n" + "\n".join(broken)

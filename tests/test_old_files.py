"""Models, runs and checkpoints that earlier versions wrote (`data/make_old_files.py`) are read and learned on."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from kernelmesh import (
    Agent,
    ExactDiffusion,
    Gaussian,
    Graph,
    KernelMeshClassifier,
    KernelMeshRegressor,
    Komp,
    Logistic,
    OnlineKernelClassifier,
    simulate,
    storage,
)
from kernelmesh.errors import UnreadableFile
from kernelmesh.runtimes.checkpoints import Checkpoint, CheckpointStore
from kernelmesh.streams import ArrayStream

DATA = Path(__file__).parent / "data"
FORMATS = [DATA / "format-2", DATA / "format-3"]
NAMES = ("a", "b", "c")
AGENT = Agent(
    dimension=2,
    outputs=3,
    kernel=Gaussian(bandwidth=0.6),
    loss=Logistic(),
    step_size=1.0,
    compression=Komp(budget=0.2),
    consensus=ExactDiffusion(budget=0.05),
)


def data(seed, rows):
    points = np.random.default_rng(seed).uniform(-1, 1, (rows, 2))
    return points, (points[:, 0] > 0).astype(int) + (points[:, 1] > 0.3)


GRID = data(2, 7)[0]


def close(found, expected, tolerance=1e-12):
    """Functions are compared bit for bit; what they make of points depends on a host's exp and BLAS in the last bits."""
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [OnlineKernelClassifier, KernelMeshClassifier, KernelMeshRegressor])
@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
class TestModels:
    def test_a_model_is_the_one_that_was_saved(self, folder, kind):
        path = folder / f"{kind.__name__}.safetensors"
        model, raw = kind.load(path), load_file(path)
        for i, state in enumerate(model._states):
            np.testing.assert_array_equal(state.sent.centers, raw[f"{i}.function.centres"])
            np.testing.assert_array_equal(state.sent.weights, raw[f"{i}.function.weights"])
            if f"{i}.shown.centres" in raw:
                np.testing.assert_array_equal(state.function.centers, raw[f"{i}.shown.centres"])
                np.testing.assert_array_equal(state.function.weights, raw[f"{i}.shown.weights"])
            assert [state.samples, state.steps] == raw[f"{i}.clock"].tolist()
            assert state.baseline_loss == raw[f"{i}.yardstick"][0]
            assert len(state.edges) == sum(key.startswith(f"{i}.edge.") and key.count(".") == 2 for key in raw)
        assert len(model._states) == (1 if kind is OnlineKernelClassifier else 3)

    def test_it_predicts_the_same(self, folder, kind):
        model, expected = kind.load(folder / f"{kind.__name__}.safetensors"), self.expected(folder, kind)
        close(self.shown(model), expected["before"])
        if kind is not KernelMeshRegressor:
            assert list(model.classes_) == ["low", "mid", "top"]
            assert list(model.predict(GRID)) == [model.classes_[np.argmax(row)] for row in expected["before"]]

    def test_it_goes_on_learning_as_it_would_have_then(self, folder, kind):
        model, (points, labels) = kind.load(folder / f"{kind.__name__}.safetensors"), data(1, 48)
        targets = np.sin(3 * points[:, 0]) + points[:, 1]
        if kind is not KernelMeshRegressor:
            targets = model.classes_[labels]
        options = {} if kind is OnlineKernelClassifier else {"agents": np.array(NAMES)[np.arange(48) % 3]}
        model.partial_fit(points, targets, **options)
        # the inverse Gram matrix is formed anew from the file: equal to rounding
        close(self.shown(model), self.expected(folder, kind)["after"], 1e-6)

    def test_saved_again_it_is_of_the_present_format(self, folder, kind, tmp_path):
        model = kind.load(folder / f"{kind.__name__}.safetensors")
        model.save(tmp_path / "new")
        assert not any("centres" in name or "yardstick" in name for name in load_file(tmp_path / "new"))
        np.testing.assert_array_equal(self.shown(kind.load(tmp_path / "new")), self.shown(model))

    def expected(self, folder, kind):
        return json.loads((folder / "predictions.json").read_text())[kind.__name__]

    def shown(self, model):
        return (model.decision_function if hasattr(model, "decision_function") else model.predict)(GRID)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
class TestRuns:
    def states(self, folder):
        arrays, about = storage.read(folder / "run.safetensors", kind="run")
        states = []
        for i, name in enumerate(NAMES):
            own = {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(f"{i}/")}
            states.append(storage.unpack(AGENT, own, name=name, names=NAMES))
        return states, about

    def test_a_run_is_read_with_what_its_edges_remember(self, folder):
        states, about = self.states(folder)
        expected = json.loads((folder / "run.json").read_text())
        assert about["rounds"] == expected["rounds"]
        for state in states:
            close(state.function(GRID), expected["functions"][state.name])
        edges = {f"{state.name}-{other}": edge for state in states for other, edge in state.edges.items()}
        assert {
            name: [edge.epoch, edge.done, edge.dual is not None and edge.dual.order] for name, edge in edges.items()
        } == expected["edges"]
        assert any(edge.offered is not None for edge in edges.values())
        assert any(edge.before is not None for edge in edges.values())
        assert any(edge.handed is not None for edge in edges.values()) == (folder.name == "format-3")

    def test_it_goes_on_and_its_duals_are_opposite_again(self, folder):
        graph = Graph.of([("a", "b"), ("b", "c")])
        states, _ = self.states(folder)
        # the digests of then are those of now: one end had told its own when the other was where the first still is
        assert states[1].edges["a"].before.terms.digest == states[0].edges["b"].digest
        streams = [ArrayStream(*data(30 + i, 80), batch_size=8) for i in range(3)]
        *_, last = simulate(AGENT, graph, streams, states=states)
        for one, other in ((0, 1), (1, 2)):
            here, there = last.states[one].edges[NAMES[other]], last.states[other].edges[NAMES[one]]
            assert (here.epoch, here.done) == (there.epoch, there.done)
            np.testing.assert_array_equal(here.dual.centers, there.dual.centers)
            np.testing.assert_array_equal(here.dual.weights, -there.dual.weights)


@pytest.mark.parametrize("name", ["stopped", "stopped-lock-step", "killed"])
def test_the_checkpoint_of_an_agent_is_read(name):
    folder = DATA / "format-3"
    expected = json.loads((folder / f"{name}.json").read_text())
    path = folder / name / f"checkpoint-{expected['steps']:09d}.safetensors"
    arrays, about = storage.read(path, kind="agent")
    assert about["settings"] == expected["identity"] == AGENT.identity
    own = {key.removeprefix("state/"): array for key, array in arrays.items() if key.startswith("state/")}
    state = storage.unpack(AGENT, own, name="a", names=about["names"])
    close(state.function(GRID), expected["values"])
    np.testing.assert_array_equal(state.model.workspace.matrix, own["workspace.inverse"])
    assert (state.steps, state.edges["b"].done) == (expected["steps"], expected["steps"])
    after, info = AGENT.step(state, *data(5, 8))
    assert after.samples == state.samples + 8
    assert not info.repaired


@pytest.mark.parametrize("name", ["stopped", "stopped-lock-step"])
def test_an_agent_that_was_stopped_resumes(name, tmp_path):
    shutil.copytree(DATA / "format-3" / name, tmp_path / "state")
    about = json.loads((DATA / "format-3" / f"{name}.json").read_text())
    with contextlib.closing(CheckpointStore(tmp_path / "state", agent=AGENT)) as store:
        checkpoint, entries = store.restore(name="a")
        assert (checkpoint.state.steps, entries) == (8, [])
        close(checkpoint.state.function(GRID), about["values"])
        state, _ = AGENT.step(checkpoint.state, *data(3, 8))
        assert store.save(Checkpoint(state=state, position=checkpoint.position, traffic=checkpoint.traffic))
        assert store.restore(name="a")[0].state.steps == 9


def test_a_journal_of_an_earlier_version_is_refused_with_what_to_do(tmp_path):
    shutil.copytree(DATA / "format-3" / "killed", tmp_path / "state")
    store = CheckpointStore(tmp_path / "state", agent=AGENT)
    with contextlib.closing(store), pytest.raises(UnreadableFile, match=r"journal-000000004\.bin.*remove the file"):
        store.restore(name="a")
    (tmp_path / "state" / "journal-000000004.bin").unlink()  # as it says
    with contextlib.closing(CheckpointStore(tmp_path / "state", agent=AGENT)) as store:
        assert store.restore(name="a")[0].state.steps == 4

"""Writes the files of an older format that `test_old_files.py` reads. Runs with the source of that time:

git worktree add OLD 067cf83        # format 2; 8a56105 for format 3
PYTHONPATH=OLD/src python tests/data/make_old_files.py tests/data/format-2
"""

import json
import sys
from pathlib import Path

import numpy as np
from kernelmesh.runtimes.conditions import Conditions

from kernelmesh import (
    Agent,
    ExactDiffusion,
    Gaussian,
    Graph,
    KernelMeshClassifier,
    KernelMeshRegressor,
    Komp,
    Linear,
    Logistic,
    OnlineKernelClassifier,
    simulate,
    storage,
)
from kernelmesh.experiments.trial import _Kept
from kernelmesh.messages import encode
from kernelmesh.streams import ArrayStream, Batch

PATH = [("a", "b"), ("b", "c")]


def data(seed, rows):
    points = np.random.default_rng(seed).uniform(-1, 1, (rows, 2))
    return points, (points[:, 0] > 0).astype(int) + (points[:, 1] > 0.3)


def write_models(folder):
    """Models, what they predict at a few points, and what they predict after they have learned from 48 samples more."""
    X, y = data(0, 240)
    more, then = data(1, 48)
    grid = data(2, 7)[0]
    names, values = np.array(["low", "mid", "top"]), np.sin(3 * X[:, 0]) + X[:, 1]
    mesh = {"graph": PATH, "consensus": ExactDiffusion(budget=0.02), "passes": 2, "random_state": 0, "max_order": 12}
    models = [
        (OnlineKernelClassifier(Gaussian(bandwidth=0.8) + 0.1 * Linear(), passes=2, random_state=0), names[y], names[then]),
        (KernelMeshClassifier(**mesh), names[y], names[then]),
        (KernelMeshRegressor(**mesh), values, np.sin(3 * more[:, 0]) + more[:, 1]),
    ]
    expected = {"points": grid.tolist()}
    for model, targets, later in models:
        name = type(model).__name__
        model.fit(X, targets).save(folder / f"{name}.safetensors")
        before = shown(model, grid)
        options = {"agents": np.array(["a", "b", "c"])[np.arange(48) % 3]} if "Mesh" in name else {}
        model.partial_fit(more, later, **options)
        expected[name] = {"before": before, "after": shown(model, grid)}
    (folder / "predictions.json").write_text(json.dumps(expected, indent=1) + "\n")


def shown(model, grid):
    return (model.decision_function if hasattr(model, "decision_function") else model.predict)(grid).tolist()


def agent():
    return Agent(
        dimension=2,
        outputs=3,
        kernel=Gaussian(bandwidth=0.6),
        loss=Logistic(),
        step_size=1.0,
        compression=Komp(budget=0.2),
        consensus=ExactDiffusion(budget=0.05),
    )


def write_run(folder):
    """An interrupted run whose messages were lost now and then, and one of whose agents had forgotten everything."""
    graph, conditions = Graph.of(PATH), Conditions(loss=0.4, rng=np.random.default_rng(3))
    streams = [ArrayStream(*data(10 + i, 80), batch_size=8) for i in range(3)]
    *_, last = simulate(agent(), graph, streams, conditions=conditions)
    states = [*last.states[:2], agent().start(name="c")]
    streams = [ArrayStream(*data(20 + i, 24), batch_size=8) for i in range(3)]
    *_, last = simulate(agent(), graph, streams, states=states, conditions=conditions)
    _Kept.of(last, [], 0.0, None).write(folder / "run.safetensors", graph, {"samples": 24})
    functions = {state.name: state.function(data(2, 7)[0]).tolist() for state in last.states}
    edges = {
        f"{state.name}-{other}": [edge.epoch, edge.done, edge.dual is not None and edge.dual.order]
        for state in last.states
        for other, edge in state.edges.items()
    }
    kept = {"rounds": last.number, "functions": functions, "edges": edges}
    (folder / "run.json").write_text(json.dumps(kept, indent=1) + "\n")


def write_agents(folder):
    """The folders of an agent "a" that learned with "b": stopped, stopped in lock step, and killed with a journal."""
    from kernelmesh.runtimes.keeping import Entry, Keeper, Kept

    from kernelmesh.consensus import Heard

    settled = agent()
    identity = {
        "dimension": 2,
        "outputs": 3,
        "kernel": storage.describe(settled.kernel),
        "loss": storage.describe(settled.loss),
        "consensus": "ExactDiffusion",
    }
    for name, steps, lock_step in (("stopped", 8, False), ("stopped-lock-step", 8, True), ("killed", 7, False)):
        keeper = Keeper(folder / name, agent=settled, settings=identity, every=4)
        keeper.begin()
        states, said = {each: settled.start(name=each) for each in "ab"}, {}
        for step in range(1, steps + 1):
            said = {each: settled.offer(states[each], other, 0.5) for each, other in ("ab", "ba")}
            heard = {each: [Heard(said[other], None, 0.5, other, each < other, 0.5)] for each, other in ("ab", "ba")}
            batches = {each: Batch(*data(100 * step + ord(each), 8)) for each in "ab"}
            position, counts = {"row": 8 * step}, {"floats_sent": 10 * step, "bytes_sent": 100 * step}
            keeper.note(Entry(step=step, batch=batches["a"], position=position, heard=heard["a"], counts=counts))
            for each in "ab":
                states[each], _ = settled.advance(states[each], *batches[each], heard[each])
            if step % 4 == 0:
                spoken = {"b": said["a"]} if lock_step else {}
                keeper.save(Kept(state=states["a"], position=position, counts=counts, said=spoken))
                kept = states["a"].function(data(2, 7)[0]).tolist()
        keeper.close()
        (folder / name / "lock").unlink()
        (folder / f"{name}.json").write_text(
            json.dumps({"steps": steps - steps % 4, "identity": identity, "values": kept}, indent=1) + "\n"
        )
    (folder / "offer.message").write_bytes(encode(settled.offer(states["a"], "b", 0.5)))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_models(folder)
    write_run(folder)
    if storage.VERSION == "3":
        write_agents(folder)

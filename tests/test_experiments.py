"""Experiments on a small scale: what they write, that they can be interrupted, resumed and repeated, and be added to."""

import csv
import dataclasses
import json
import multiprocessing
import re
import time
from dataclasses import dataclass

import numpy as np
import pytest
from typer.testing import CliRunner

from kernelmesh import Averaged, Gradient, Komp, Landmarks, Local, Relay, SecondOrder, errors, registry, storage
from kernelmesh.cli import app
from kernelmesh.numerics.compression import Update
from kernelmesh.protocols import ConsensusProtocol
from kernelmesh.registry import register
from kernelmesh_experiments import catalog, one_class
from kernelmesh_experiments.base import Experiment, run
from kernelmesh_experiments.catalog import experiments
from kernelmesh_experiments.cells import Cell, run_cells
from kernelmesh_experiments.events import CellFinished, Complete, Diverged, Finished, Interrupted, Measured, Progress, Started
from kernelmesh_experiments.gmm import LOGISTIC, HeterogeneousConfig
from kernelmesh_experiments.gmm import LogisticConfig as Config
from kernelmesh_experiments.mixture import Task
from kernelmesh_experiments.report import Findings
from kernelmesh_experiments.settings import Count, Settings, describe_settings, setting
from kernelmesh_experiments.trial import learn
from test_sweep import here

TINY = {"agents": 4, "samples": 192, "held_out": 100}
FLAT = re.compile(r"^[a-z][a-z0-9_]*$")


def flat(summary):
    return all(FLAT.match(key) and isinstance(value, str | int | float | None) for key, value in summary.items())


class Stop:
    """An observer that wants the run to stop after some steps."""

    def __init__(self, after):
        self.after = after
        self.wanted = False

    def __call__(self, event):
        self.wanted |= isinstance(event, Progress) and event.done >= self.after

    @property
    def options(self):
        return {"observers": (self,), "stop": lambda: self.wanted}


def test_agents_with_one_class_each_learn_all_of_them_only_by_sharing(tmp_path):
    finished = run(one_class.EXPERIMENTS[0], one_class.Config(agents=10, samples=1600, held_out=400), tmp_path)
    found = finished.summary
    assert finished.outcome == Complete()
    assert found["alone_accuracy_mean"] < 0.3
    assert found["paper_accuracy_mean"] < 0.3
    assert found["relay_accuracy_worst"] > 0.97 * found["svm_accuracy"]
    assert {part.name for part in tmp_path.iterdir() if part.is_dir()} == {"alone", "paper", "relay"}
    assert tmp_path / "figure.png" in finished.files


def test_a_class_that_no_agent_sees_is_refused():
    with pytest.raises(
        errors.InvalidArgument, match="one-class: agents must be at least 5, so that every class is seen, got 4"
    ):
        one_class.Config(agents=4)
    with pytest.raises(errors.InvalidArgument, match="one-class: partition must be omitted"):
        one_class.run(one_class.Config(partition="identical"), None)


@pytest.mark.parametrize("name", ["gmm-logistic", "gmm-hinge", "heterogeneous"])
def test_runs_and_writes(name, tmp_path):
    experiment = experiments()[name]
    config = experiment.config(**TINY)
    (tmp_path / "report.html").write_text("the page of an earlier run")
    finished = run(experiment, config, tmp_path)
    assert finished.outcome == Complete()
    assert {tmp_path / "summary.json", tmp_path / "report.json"} <= set(finished.files)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == finished.summary
    assert flat(summary)
    assert (summary["complete"], summary["outcome"], summary["remark"]) == (True, "complete", "")
    assert not (tmp_path / "report.html").exists()
    notes = json.loads((tmp_path / "report.json").read_text())
    assert notes["paragraphs"] == list(finished.findings.paragraphs)
    assert {f"{figure}.png" for figure in finished.findings.figures} <= {file.name for file in tmp_path.iterdir()}
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings.pop("experiment") == name
    assert experiment.config(**{key: float(v) if v == "inf" else v for key, v in settings.items()}) == config
    for figure in ("accuracy_mean", "accuracy_worst", "centralized_accuracy", "bayes_accuracy", "svm_accuracy"):
        assert 0 < summary[figure] <= 1
    assert summary["learner"] == ("landmarks" if name == "heterogeneous" else "gradient")


def test_observers_see_the_whole_run(tmp_path):
    events = []
    config = Config(**TINY, measure_every=2)
    finished = run(LOGISTIC, config, tmp_path, observers=(events.append,))
    assert events[0] == Started("gmm-logistic", config)
    assert events[-1] is finished
    assert isinstance(finished, Finished)
    steps = [event for event in events if isinstance(event, Progress)]
    assert [step.done for step in steps] == list(range(7))
    assert {(step.total, step.unit) for step in steps} == {(6, "rounds")}
    measured = [event for event in events if isinstance(event, Measured)]
    assert [event.round.number for event in measured] == [1, 2, 4, 6]
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert [float(row["objective"]) for row in rows] == [event.measures.objective for event in measured]


@pytest.mark.parametrize(
    ("protocol", "learner"),
    [
        ("penalty", "gradient"),
        ("diffusion", "gradient"),
        ("diffusion", "averaged"),
        ("local", "second-order"),
        ("relay", "landmarks"),
    ],
)
def test_an_interrupted_run_resumes_as_if_it_had_not_been(protocol, learner, tmp_path):
    config = Config(**{**TINY, "samples": 640}, protocol=protocol, learner=learner, measure_every=3)

    def train(stop=None, **options):
        options |= {"publish": stop, "stop": lambda: stop.wanted} if stop else {}
        return learn(Task.draw(config).network(), **options)

    whole = train()
    stopped = train(Stop(7), folder=tmp_path)
    assert stopped.outcome == Interrupted(done=7, total=20, unit="rounds")
    assert stopped.outcome.exit_code == 130
    assert stopped.newest.number == stopped.last.round == 7
    resumed = train(folder=tmp_path, resume=True)
    assert resumed.outcome == Complete()
    assert resumed.newest.number == whole.newest.number
    assert resumed.newest.samples == whole.newest.samples
    for f, g in zip(resumed.newest.functions, whole.newest.functions, strict=True):
        assert f.distance(g) < 1e-6 * g.norm()
    assert (resumed.newest.bytes_sent == whole.newest.bytes_sent).all()
    assert [line.samples for line in resumed.record] == [line.samples for line in whole.record]
    once_more = train(Stop(1), folder=tmp_path, resume=True)  # it is complete: there is nothing left to interrupt
    assert once_more.outcome == Complete()
    assert once_more.last == resumed.last


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_run_is_reported_and_resumed(error, tmp_path):
    """Whether by a request to stop, by Ctrl-C in the middle of a round, or by an observer that fails."""

    def press(event):
        if isinstance(event, Progress) and event.done == 3:
            raise error

    config, interrupted = Config(**TINY), Interrupted(done=3, total=6, unit="rounds")
    if error is KeyboardInterrupt:
        assert run(LOGISTIC, config, tmp_path, observers=(press,)).outcome == interrupted
        stopped = run(LOGISTIC, config, tmp_path, **Stop(3).options)
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert stopped.outcome == interrupted
        assert (summary["outcome"], summary["remark"]) == ("interrupted", str(interrupted))
        assert (summary["rounds_done"], summary["rounds_total"]) == (3, 6)
        assert flat(summary)
        assert not {"centralized_accuracy", "svm_accuracy"} & summary.keys()
    else:
        with pytest.raises(error):
            run(LOGISTIC, config, tmp_path, observers=(press,))
    events = []
    resumed = run(LOGISTIC, config, tmp_path, resume=True, observers=(events.append,))
    assert next(event for event in events if isinstance(event, Progress)).done == 3
    assert (resumed.outcome, resumed.summary["complete"]) == (Complete(), True)


def test_ctrl_c_after_the_last_round_saves_the_network_without_references(tmp_path):
    finished = run(LOGISTIC, Config(**TINY), tmp_path, **Stop(6).options)
    assert finished.outcome == Interrupted(done=0, total=1, unit="references")
    assert finished.summary["samples_per_agent"] == 192
    assert "centralized_accuracy" not in finished.summary
    assert "centralized_accuracy" in run(LOGISTIC, Config(**TINY), tmp_path, resume=True).summary


def test_a_second_ctrl_c_while_the_end_is_measured_loses_nothing(tmp_path):
    stop = Stop(4)

    def press(event):
        if isinstance(event, Measured) and stop.wanted:
            raise KeyboardInterrupt

    config = Config(**TINY, measure_every=100)
    with pytest.raises(KeyboardInterrupt):
        run(LOGISTIC, config, tmp_path, observers=(stop, press), stop=lambda: stop.wanted)
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_a_forged_checkpoint_of_a_run_is_refused(tmp_path):
    experiment, config = LOGISTIC, Config(**TINY)
    run(experiment, config, tmp_path, **Stop(2).options)
    arrays, about = storage.read(tmp_path / "checkpoint.safetensors", kind="run")
    for change in ({"record": None}, {"record": [{}]}, {"rounds": "x"}, {"rounds": -5}, {"settings": 5}, {"seconds": []}):
        forged = {**about, **change}
        storage.write(tmp_path / "checkpoint.safetensors", kind="run", arrays=arrays, settings=forged)
        with pytest.raises(errors.UnreadableFile, match="must hold a run"):
            run(experiment, config, tmp_path, resume=True)


def test_divergence_is_an_outcome_with_its_facts(tmp_path):
    config = Config(**{**TINY, "samples": 2000}, protocol="penalty", penalty_start=4.0)
    with pytest.warns(errors.UnstablePenalty):
        finished = run(LOGISTIC, config, tmp_path)
    assert isinstance(finished.outcome, Diverged)
    assert finished.outcome.exit_code == 1
    summary = finished.summary
    assert flat(summary)
    assert summary["outcome"] == "diverged"
    assert summary["diverged_penalty"] == finished.outcome.error.penalty >= 4.0
    assert summary["samples_per_agent"] <= summary["diverged_samples"]


def test_a_run_resumes_only_with_its_own_settings(tmp_path):
    experiment, config = LOGISTIC, Config(**TINY)
    run(experiment, config, tmp_path, **Stop(2).options)
    with pytest.raises(errors.InvalidArgument, match=r"must continue a run with the settings of that run, got {.seed.: 1}"):
        run(experiment, dataclasses.replace(config, seed=1), tmp_path, resume=True)


@pytest.mark.parametrize("name", experiments())
def test_every_setting_says_what_it_means_and_every_experiment_how_long_it_takes(name):
    experiment = experiments()[name]
    assert experiment.takes
    settings = describe_settings(experiment.config)
    assert "seed" in settings
    assert [each.name for each in settings.values() if not each.doc] == []


def test_partitions_deal_out_classes():
    for partition, classes in (("identical", 5), ("two-class", 2), ("one-class", 1)):
        task = Task.draw(HeterogeneousConfig(partition=partition, agents=5, samples=500, passes=2))
        seen = [np.unique(np.concatenate([batch.targets for batch in stream])) for stream in task.streams]
        assert {len(labels) for labels in seen} == {classes}
        assert set(np.concatenate(seen)) == set(range(5))
        assert len({len(stream) for stream in task.streams}) == 1  # everybody goes on until everybody is done


def double(settings):
    return {"twice": 2 * settings}


def test_cells_are_saved_only_for_their_own_settings_and_damage_is_computed_again(tmp_path):
    cells = {name: Cell(double, number) for number, name in enumerate("abcde")}
    first = run_cells(cells, folder=tmp_path, pool=here)
    assert first == {"a": {"twice": 0}, "b": {"twice": 2}, "c": {"twice": 4}, "d": {"twice": 6}, "e": {"twice": 8}}
    for name, damage in zip("abcd", ("{}", "[1]", "", "\x00"), strict=True):
        (tmp_path / "cells" / f"{name}.json").write_text(damage)
    events = []
    assert run_cells(cells, folder=tmp_path, resume=True, publish=events.append, pool=here) == first
    assert {event.name for event in events if isinstance(event, CellFinished)} == set("abcd")
    with pytest.raises(errors.InvalidArgument, match="with the settings of that run"):
        run_cells({**cells, "b": Cell(double, 5)}, folder=tmp_path, resume=True)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_ctrl_c_keeps_the_cells_that_are_done_and_ends_the_workers_quietly(tmp_path, capfd):
    cells = {"quick": Cell(double, 1), **{f"slow-{n}": Cell(_sleep, n) for n in range(40)}}
    presses = []

    def stop():
        """True once the first cell is done; asked again, the user presses a second time."""
        if presses:
            raise KeyboardInterrupt
        presses.extend((tmp_path / "cells").glob("*.json"))
        return bool(presses)

    assert run_cells(cells, folder=tmp_path, stop=stop) == {"quick": {"twice": 2}}
    assert [file.name for file in (tmp_path / "cells").iterdir()] == ["quick.json"]
    assert not multiprocessing.active_children()
    assert capfd.readouterr().err == ""


def test_a_stopped_run_begins_no_cells(tmp_path):
    assert run_cells({"slow": Cell(_sleep, 0)}, folder=tmp_path, stop=lambda: True) == {}


def _sleep(_):
    time.sleep(120)
    return {}


@pytest.fixture
def foreign(monkeypatch):
    """A learner and a protocol from outside."""
    for role in ("learner", "protocol"):
        monkeypatch.setitem(registry._known, role, registry.kinds(role))

    @register("learner")
    @dataclass(frozen=True, kw_only=True)
    class HalfSteps(Gradient):
        """Half of every step is enough."""

        def learn(self, model, inputs, move):
            return super().learn(model, dataclasses.replace(inputs, step_size=inputs.step_size / 2), move)

    @register("protocol")
    @dataclass(frozen=True)
    class Lonely(ConsensusProtocol):
        """Nobody talks."""

        def move(self, inputs, heard):
            return Update(inputs.points, -inputs.step_size / len(inputs.points) * inputs.slope)


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"learner": "half-steps", "protocol": "local"}, {"step_size": 1.5, "protocol": "local"}),
        ({"protocol": "lonely"}, {"protocol": "local"}),
    ],
    ids=["learner", "protocol"],
)
def test_learners_and_protocols_from_outside_run(theirs, ours, tmp_path):
    one, other = (
        learn(Task.draw(Config(**TINY, parsimony=0.0, regularization=0.0, **each)).network()).last.objective
        for each in (theirs, ours)
    )
    assert one == pytest.approx(other)
    (role, name), *_ = theirs.items()
    assert name in CliRunner().invoke(app, ["list", f"--{role}s"]).output
    with pytest.raises(errors.InvalidArgument, match=rf"{role} must be one of .*, {name}"):
        Config(**{role: "magic"})
    arguments = ["run", "gmm-logistic", f"--{role}", name, "--agents", "3", "--samples", "96", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "summary.json").read_text())[role] == name


def agent_of(**settings):
    return Task.draw(Config(**TINY, **settings)).agent()


def test_the_defaults_are_those_of_the_paper_and_of_each_learner():
    paper = Gradient(step_size=3.0, compression=Komp(), regularization=1e-6)
    assert agent_of(protocol="local").learner == paper
    assert paper.budget_at(0) == 0.04 * 3.0**1.5
    assert agent_of(protocol="diffusion", learner="averaged").learner == Averaged(step_size=30.0)
    assert agent_of(protocol="local", learner="second-order").learner == SecondOrder()
    assert agent_of(protocol="relay").learner == Landmarks()


@pytest.mark.parametrize(
    ("learner", "changes", "expected"),
    [
        ("gradient", {"step_size": 1.0, "regularization": 1e-4}, Gradient(step_size=1.0, regularization=1e-4)),
        (
            "gradient",
            {"parsimony": 0.1, "max_order": 9},
            Gradient(step_size=3.0, compression=Komp(parsimony=0.1, max_order=9)),
        ),
        ("averaged", {"step_size": 9.0, "fidelity": 0.5}, Averaged(step_size=9.0, fidelity=0.5)),
        ("averaged", {"half_life": 500.0}, Averaged(step_size=30.0, half_life=500.0)),
        ("second-order", {"budget": 0.1, "iterations": 1}, SecondOrder(budget=0.1, iterations=1)),
        ("second-order", {"novelty": 0.1, "max_order": 9}, SecondOrder(novelty=0.1, max_order=9)),
        ("landmarks", {"novelty": 0.3, "keep": 0}, Landmarks(novelty=0.3, keep=0)),
        ("landmarks", {"regularization": 1.0, "max_order": 9}, Landmarks(regularization=1.0, max_order=9)),
    ],
)
def test_settings_reach_the_learner(learner, changes, expected):
    assert agent_of(protocol="local", learner=learner, **changes).learner == expected
    assert agent_of(protocol="relay", every=3, bits=16).protocol == Relay(every=3, bits=16)
    with pytest.raises(errors.InvalidArgument, match="keep must be omitted with the learner gradient"):
        Config(keep=9)


@pytest.mark.parametrize("name", ["gmm-hinge", "heterogeneous"])
@pytest.mark.parametrize(("learner", "agents"), [("averaged", 4), ("second-order", 1), ("landmarks", 1)])
def test_other_learners_learn_more_from_few_samples(name, learner, agents, tmp_path):
    experiment = experiments()[name]
    config = experiment.config(
        samples=640, held_out=300, agents=agents, protocol="diffusion", partition="identical", learner=learner
    )
    summary = run(experiment, config, tmp_path).summary
    paper = learn(Task.draw(dataclasses.replace(config, learner="gradient")).network())
    assert summary["learner"] == learner
    assert summary["accuracy_worst"] > paper.last.score_worst


def test_a_learner_that_learns_alone_says_so():
    with pytest.raises(errors.InvalidArgument, match="gmm-logistic: protocol must be local with the learner second-order"):
        Config(learner="second-order")
    assert Config(learner="second-order", protocol="local").agents == 20
    assert Task.draw(Config(**{**TINY, "agents": 1}, learner="second-order", protocol="penalty")).agent().protocol == Local()
    done = CliRunner().invoke(app, ["run", "heterogeneous", "--learner", "second-order"])
    assert done.exit_code == 2
    assert "`--protocol local`, or a network of one with `--agents 1`" in done.output + done.stderr


@pytest.fixture
def coin(monkeypatch):
    """An experiment in the catalog."""

    @dataclass(frozen=True, kw_only=True)
    class CoinConfig(Settings, owner="coin"):
        throws: Count = setting(100, doc="how often")

    def throw(config, session):
        heads = int(np.random.default_rng(config.seed).integers(2, size=config.throws).sum())
        return Findings(summary={"seed": config.seed, "heads": heads})

    def several(config, session):
        return Findings(summary=session.compute({"a": Cell(double, config.throws)})["a"])

    experiment = Experiment(name="coin", about="throws of a coin", config=CoinConfig, run=throw, table=several)
    known = {**experiments(), "coin": experiment}
    monkeypatch.setattr(catalog, "experiments", lambda: known)
    return known


def printed(*arguments):
    done = CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_resuming_reports_what_is_complete(coin, tmp_path):
    options = ("coin", "--all", "--resume", "--out", tmp_path / "new")
    code, text = printed(*options)
    assert code == 0
    assert "1/1 cells: a, 0:00:00 left" in text
    code, text = printed(*options)
    assert code == 0
    assert "1/1 cells: already complete, 0:00:00 left" in text
    assert "starting" not in text
    code, text = printed(*options, "--set", "throws=8")
    assert code == 2
    assert "--resume must continue a run with the settings of that run" in text


def test_an_experiment_is_listed_and_run(coin, tmp_path):
    listed = CliRunner().invoke(app, ["list"]).output
    assert "throws of a coin" in listed
    done = CliRunner().invoke(app, ["run", "coin", "--seed", "3", "--set", "throws=7", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["experiment"], summary["seed"], summary["complete"]) == ("coin", 3, True)
    assert 0 <= summary["heads"] <= 7
    done = CliRunner().invoke(app, ["run", "coin", "--all", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "summary.json").read_text())["twice"] == 200


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Interrupted(done=1, total=2, unit="cells"), 130),
        (Diverged(errors.Diverged(agent="a", samples=5, step_size=1.0, penalty=0.0, reason="the loss is infinite")), 1),
    ],
)
def test_the_exit_code_follows_from_the_outcome(coin, outcome, code, tmp_path):
    def fails(config, session):
        session.outcome = outcome
        return Findings(summary={"seed": config.seed})

    coin["coin"] = dataclasses.replace(coin["coin"], run=fails)
    done = CliRunner().invoke(app, ["run", "coin", "--out", str(tmp_path)])
    assert done.exit_code == code
    assert str(outcome) in done.output + done.stderr
    assert flat(json.loads((tmp_path / "summary.json").read_text()))

"""Experiments on a small scale: what they write, that they can be interrupted, resumed and repeated, and be added to."""

import csv
import dataclasses
import json
import multiprocessing
import re
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from kernelmesh.experiments import (
    Cell,
    Experiment,
    Findings,
    Session,
    budget_sweep,
    describe_settings,
    heterogeneous,
    learn,
    one_class,
    run,
    theory,
    violation,
)
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.events import CellFinished, Finished, Measured, Progress, Started
from kernelmesh.experiments.gmm import LogisticConfig as Config
from kernelmesh.experiments.learning import Rates, parsimonious_agent
from kernelmesh.experiments.mixture import Task
from kernelmesh.experiments.outcome import Complete, Diverged, Interrupted
from typer.testing import CliRunner

from kernelmesh import Komp, Local, errors, registry, storage
from kernelmesh.cli import app, experiments
from kernelmesh.learners import Gradient
from kernelmesh.numerics.compression import Update
from kernelmesh.protocols import ConsensusProtocol
from kernelmesh.registry import kinds, register

TINY = {"agents": 4, "samples": 192, "held_out": 100}
SUMMARY = {
    "experiment",
    "seed",
    "protocol",
    "agents",
    "complete",
    "outcome",
    "remark",
    "samples_per_agent",
    "model_order_mean",
    "model_order_max",
    "disagreement",
    "objective",
    "floats_per_sample",
    "bytes_per_sample",
    "seconds",
}
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
    finished = run(one_class.EXPERIMENT, one_class.Config(agents=10, samples=1600, held_out=400), tmp_path)
    found = finished.report.summary
    assert finished.outcome == Complete()
    assert found["alone_accuracy_mean"] < 0.3
    assert found["paper_accuracy_mean"] < 0.3
    assert found["relay_accuracy_worst"] > 0.97 * found["svm_accuracy"]
    assert {part.name for part in tmp_path.iterdir() if part.is_dir()} == {"alone", "paper", "relay"}
    assert tmp_path / "figure.png" in finished.files


def test_a_class_that_nobody_sees_is_refused():
    with pytest.raises(
        errors.InvalidArgument, match="one-class: agents must be at least 5, so that every class is seen, got 4"
    ):
        one_class.Config(agents=4)


@pytest.mark.parametrize("name", ["gmm-logistic", "gmm-hinge", "heterogeneous"])
def test_runs_and_writes(name, tmp_path):
    experiment = kinds("experiment")[name]
    config = experiment.config(**TINY)
    (tmp_path / "report.html").write_text("the page of an earlier run")
    finished = run(experiment, config, tmp_path)
    assert finished.outcome == Complete()
    assert {tmp_path / "summary.json", tmp_path / "report.json"} <= set(finished.files)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == finished.report.summary
    assert set(summary) >= SUMMARY
    assert flat(summary)
    assert (summary["complete"], summary["outcome"], summary["remark"]) == (True, "complete", "")
    assert not (tmp_path / "report.html").exists()
    notes = json.loads((tmp_path / "report.json").read_text())
    assert notes["paragraphs"] == list(finished.report.findings.paragraphs)
    assert {f"{figure}.png" for figure in finished.report.findings.figures} <= {file.name for file in tmp_path.iterdir()}
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings.pop("experiment") == name
    assert experiment.config(**{key: float(v) if v == "inf" else v for key, v in settings.items()}) == config


@pytest.mark.parametrize(
    ("name", "settings", "table"),
    [
        ("heterogeneous", {**TINY, "seeds": 1}, True),
        ("gmm-hinge", {**TINY, "reading": "printed"}, True),
        ("violation", {"agents": 3, "samples": 12, "passes": 10}, False),
        ("budget-sweep", {**TINY, "seeds": 1}, False),
        ("baselines", {"task": "mixture", "samples": 192, "mixture_agents": 3}, False),
    ],
)
@pytest.mark.slow
def test_tables_have_flat_summaries_too(name, settings, table, tmp_path):
    experiment = kinds("experiment")[name]
    finished = run(experiment, experiment.config(**settings), tmp_path, table=table)
    assert finished.outcome == Complete()
    assert flat(finished.report.summary)
    assert finished.report.findings.tables["table"]
    columns = {column for row in finished.report.findings.tables["table"] for column in row}
    assert all(FLAT.match(column) for column in columns)


def test_the_summary_of_the_theory_is_flat_and_has_every_claim(tmp_path):
    class Canned(Session):
        def compute(self, cells):
            path = [[100.0 * t, 3.0 / t, 5.0] for t in range(1, 41)]
            gaps = [[32.0 * t, 0.5, 1.0] for t in range(1, 9)]
            return {
                name: {
                    "path": path,
                    "noise": 1.0,
                    "gaps": gaps,
                    "bound": 900,
                    "parsimony": float(name.split("-")[-1]),
                    "coupling": float(name.split("-")[-1]),
                    "minimizer": 1.0,
                    "penalty": 2.0,
                    "protocol": name.split("-")[1],
                    "violation": 1e-3,
                    "diverged": False,
                }
                for name in cells
                if name not in self.missing
            }

    session = Canned(tmp_path)
    session.missing = ()
    found = theory.run(theory.Config(), session)
    assert flat(found.summary)
    assert set(found.figures) == {claim.name for claim in theory.CLAIMS}
    assert found.summary["theorem_1_exponent_expected"] == 0.5
    session.missing = ("converge-1",)  # only what needs it is left out
    assert set(theory.run(theory.Config(), session).figures) == set(found.figures) - {"theorem-1"}


def test_one_cell_of_the_table(tmp_path):
    summary = run(heterogeneous.EXPERIMENT, heterogeneous.Config(**TINY), tmp_path).report.summary
    for name in ("accuracy_mean", "accuracy_worst", "centralized_accuracy", "bayes_accuracy", "svm_accuracy"):
        assert 0 < summary[name] <= 1
    assert summary["protocol"] == "relay"
    assert summary["learner"] == "landmarks"


def test_observers_see_the_whole_run(tmp_path):
    events = []
    config = Config(**TINY, measure_every=2)
    finished = run(kinds("experiment")["gmm-logistic"], config, tmp_path, observers=(events.append,))
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
def test_an_interrupted_run_resumes_as_if_it_had_not_been(protocol, rule, tmp_path):
    config = Config(**{**TINY, "samples": 640}, protocol=protocol, rule=rule, measure_every=3)

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


def test_the_report_of_an_interrupted_run_is_written_and_replaced_when_it_is_resumed(tmp_path):
    experiment, config = kinds("experiment")["gmm-logistic"], Config(**TINY)
    stopped = run(experiment, config, tmp_path, **Stop(3).options)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert stopped.outcome == Interrupted(done=3, total=6, unit="rounds")
    assert (summary["outcome"], summary["complete"]) == ("interrupted", False)
    assert (summary["rounds_done"], summary["rounds_total"]) == (3, 6)
    assert summary["remark"] == str(stopped.outcome)
    assert flat(summary)
    resumed = run(experiment, config, tmp_path, resume=True)
    assert resumed.outcome == Complete()
    assert resumed.report.summary["seconds"] > 0
    assert json.loads((tmp_path / "summary.json").read_text())["complete"]


def test_ctrl_c_in_the_middle_of_a_round_keeps_the_rounds_before_it(tmp_path):
    def press(event):
        if isinstance(event, Progress) and event.done == 3:
            raise KeyboardInterrupt

    finished = run(kinds("experiment")["gmm-logistic"], Config(**TINY), tmp_path, observers=(press,))
    assert finished.outcome == Interrupted(done=3, total=6, unit="rounds")
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_a_second_ctrl_c_while_the_end_is_measured_loses_nothing(tmp_path):
    stop = Stop(4)

    def press(event):
        if isinstance(event, Measured) and stop.wanted:
            raise KeyboardInterrupt

    config = Config(**TINY, measure_every=100)
    with pytest.raises(KeyboardInterrupt):
        run(kinds("experiment")["gmm-logistic"], config, tmp_path, observers=(stop, press), stop=lambda: stop.wanted)
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_a_forged_checkpoint_of_a_run_is_refused(tmp_path):
    experiment, config = kinds("experiment")["gmm-logistic"], Config(**TINY)
    run(experiment, config, tmp_path, **Stop(2).options)
    arrays, about = storage.read(tmp_path / "checkpoint.safetensors", kind="run")
    for change in ({"record": None}, {"record": [{}]}, {"rounds": "x"}, {"rounds": -5}, {"settings": 5}, {"seconds": []}):
        forged = {**about, **change}
        storage.write(tmp_path / "checkpoint.safetensors", kind="run", arrays=arrays, settings=forged)
        with pytest.raises(errors.UnreadableFile, match="must hold a run"):
            run(experiment, config, tmp_path, resume=True)


def test_a_broken_observer_costs_no_rounds(tmp_path):
    def broken(event):
        if isinstance(event, Progress) and event.done == 3:
            raise ZeroDivisionError

    experiment, config = kinds("experiment")["gmm-logistic"], Config(**TINY)
    with pytest.raises(ZeroDivisionError):
        run(experiment, config, tmp_path, observers=(broken,))
    events = []
    assert run(experiment, config, tmp_path, resume=True, observers=(events.append,)).outcome == Complete()
    assert next(event for event in events if isinstance(event, Progress)).done == 3


def test_divergence_is_an_outcome_with_its_facts(tmp_path):
    config = Config(**{**TINY, "samples": 2000}, protocol="penalty", penalty_start=4.0)
    with pytest.warns(errors.UnstablePenalty):
        finished = run(kinds("experiment")["gmm-logistic"], config, tmp_path)
    assert isinstance(finished.outcome, Diverged)
    assert finished.outcome.exit_code == 1
    summary = finished.report.summary
    assert flat(summary)
    assert summary["outcome"] == "diverged"
    assert summary["diverged_penalty"] == finished.outcome.error.penalty >= 4.0
    assert summary["samples_per_agent"] <= summary["diverged_samples"]


def test_a_run_resumes_only_with_its_own_settings(tmp_path):
    experiment, config = kinds("experiment")["gmm-logistic"], Config(**TINY)
    run(experiment, config, tmp_path, **Stop(2).options)
    with pytest.raises(
        errors.InvalidArgument, match="--resume must continue a run with the settings of that run, got others for seed"
    ):
        run(experiment, dataclasses.replace(config, seed=1), tmp_path, resume=True)


@pytest.mark.parametrize("name", kinds("experiment"))
def test_every_setting_says_what_it_means(name):
    settings = describe_settings(kinds("experiment")[name].config)
    assert "seed" in settings
    assert [each.name for each in settings.values() if not each.doc] == []


def test_a_changed_default_keeps_the_meaning():
    loss = describe_settings(kinds("experiment")["gmm-hinge"].config)["loss"]
    assert (loss.default, loss.doc) == ("hinge", "logistic or hinge")


def test_partitions_deal_out_what_they_say():
    for partition, classes in (("identical", 5), ("two-class", 2), ("one-class", 1)):
        task = Task.draw(heterogeneous.Config(partition=partition, agents=5, samples=500, passes=2))
        seen = [np.unique(np.concatenate([batch.targets for batch in stream])) for stream in task.streams]
        assert {len(labels) for labels in seen} == {classes}
        assert set(np.concatenate(seen)) == set(range(5))
        assert len({len(stream) for stream in task.streams}) == 1  # everybody goes on until everybody is done


def test_the_whole_table_can_be_interrupted_and_resumed(tmp_path):
    config = heterogeneous.Config(**TINY, seeds=1)
    partial = run(heterogeneous.EXPERIMENT, config, tmp_path, table=True, **Stop(3).options)
    saved = len(list((tmp_path / "cells").glob("*.json")))
    assert partial.outcome == Interrupted(done=saved, total=23, unit="cells")
    assert 3 <= saved < 23
    events = []
    finished = run(heterogeneous.EXPERIMENT, config, tmp_path, table=True, resume=True, observers=(events.append,))
    assert next(event for event in events if isinstance(event, Progress)).done == saved
    assert sum(isinstance(event, CellFinished) for event in events) == 23 - saved
    assert finished.outcome == Complete()
    assert flat(finished.report.summary)
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert len(rows) == 3 * 6 + 3 + 1
    tables = finished.report.findings.tables
    assert tables["goals"] == []  # they are for the full size only
    goals = heterogeneous._goals(tables["table"], {"centralized": 0.5})
    assert len(goals) == 7
    assert all(FLAT.match(goal["goal"]) and isinstance(goal["met"], bool) for goal in goals)


def double(settings):
    return {"twice": 2 * settings}


def test_cells_are_saved_only_for_their_own_settings_and_damage_is_computed_again(tmp_path):
    cells = {name: Cell(double, number) for number, name in enumerate("abcde")}
    first = run_cells(cells, folder=tmp_path)
    assert first == {"a": {"twice": 0}, "b": {"twice": 2}, "c": {"twice": 4}, "d": {"twice": 6}, "e": {"twice": 8}}
    for name, damage in zip("abcd", ("{}", "[1]", "", "\x00"), strict=True):
        (tmp_path / "cells" / f"{name}.json").write_text(damage)
    events = []
    assert run_cells(cells, folder=tmp_path, resume=True, publish=events.append) == first
    assert {event.name for event in events if isinstance(event, CellFinished)} == set("abcd")
    with pytest.raises(errors.InvalidArgument, match="with the settings of that run, got others for cell b"):
        run_cells({**cells, "b": Cell(double, 5)}, folder=tmp_path, resume=True)


def test_ctrl_c_now_keeps_the_cells_that_are_done_and_ends_the_workers(tmp_path):
    cells = {"quick": Cell(double, 1), **{f"slow-{n}": Cell(_sleep, n) for n in range(4)}}

    def press(event):
        if isinstance(event, CellFinished):
            raise KeyboardInterrupt

    began = time.perf_counter()
    assert run_cells(cells, folder=tmp_path, publish=press) == {"quick": {"twice": 2}}
    assert time.perf_counter() - began < 60
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_ctrl_c_twice_keeps_the_cells_that_are_done_and_ends_the_workers_without_a_traceback(tmp_path, capfd):
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


def test_proposition_2_holds_for_the_exact_minimizer():
    problem = violation.Config(agents=3, samples=12).problem()
    optimum, together = problem.minimize(np.inf)
    assert problem.violation(together) == 0
    lowest = 0.0
    for coupling in (0.01, 1.0, 100.0):
        value, functions = problem.minimize(coupling)
        assert 0 < problem.violation(functions) <= optimum / coupling
        assert lowest <= value <= optimum  # ψ_c rises to p* with c
        lowest = value
    # a step in any direction costs: it is the minimizer
    assert value < optimum


@pytest.fixture
def lonely():
    """A protocol from outside."""

    @register("protocol")
    @dataclass(frozen=True)
    class Lonely(ConsensusProtocol):
        """Nobody talks."""

        def move(self, inputs, heard):
            return Update(inputs.points, -inputs.step_size / len(inputs.points) * inputs.slope)

    yield Lonely
    del registry._known["protocol"]["Lonely"]


def test_a_protocol_from_outside_runs(lonely, tmp_path):
    experiment = kinds("experiment")["gmm-logistic"]
    summaries = [
        run(experiment, Config(**TINY, protocol=name, regularization=0.0), tmp_path / name).report.summary
        for name in ("lonely", "local")
    ]
    assert summaries[0]["protocol"] == "lonely"
    assert summaries[0]["accuracy_mean"] == pytest.approx(summaries[1]["accuracy_mean"])
    assert summaries[0]["bytes_per_sample"] == 0
    assert "lonely" in CliRunner().invoke(app, ["list", "--protocols"]).output
    with pytest.raises(errors.InvalidArgument, match=r"protocol must be one of local, .*, lonely, capped-penalty"):
        Config(protocol="magic")
    out = tmp_path / "command"
    done = CliRunner().invoke(
        app, ["run", "gmm-logistic", "--protocol", "lonely", "--agents", "3", "--samples", "96", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert json.loads((out / "summary.json").read_text())["protocol"] == "lonely"


def test_without_a_rule_agents_are_the_papers():
    config = Config(**TINY)
    task = Task.draw(config)
    rates = Rates(config.step_size, config.parsimony, config.regularization)
    assert task.agent(Local()) == parsimonious_agent((2, 5), task.kernel, rates, Local())
    assert task.agent().protocol == task.protocol()


@pytest.mark.parametrize(
    ("learner", "changes"),
    [
        ("gradient", {"step_size": 1.0}),
        ("gradient", {"parsimony": 0.1}),
        ("gradient", {"regularization": 1e-4}),
        ("gradient", {"step_halves": 500.0}),
        ("gradient", {"max_order": 9}),
        ("averaged", {"averaged_step_size": 10.0}),
        ("averaged", {"averaged_parsimony": 0.1}),
        ("averaged", {"averaged_fidelity": 0.5}),
        ("averaged", {"half_life": 500.0}),
        ("averaged", {"max_order": 9}),
        ("averaged", {"step_halves": 500.0}),
        ("second-order", {"second_order_budget": 0.1}),
        ("second-order", {"second_order_regularization": 1.0}),
        ("second-order", {"second_order_novelty": 0.1}),
        ("second-order", {"second_order_iterations": 1}),
        ("second-order", {"half_life": 500.0}),
        ("second-order", {"max_order": 9}),
        ("landmarks", {"landmarks_regularization": 1.0}),
        ("landmarks", {"landmarks_novelty": 0.3}),
        ("landmarks", {"landmarks_keep": 0}),
        ("landmarks", {"half_life": 500.0}),
        ("landmarks", {"max_order": 9}),
    ],
)
def test_every_setting_of_a_rule_reaches_its_agents(rule, changes):
    settings = {**TINY, "protocol": "local", "learner": rule}
    agents = [Task.draw(Config(**settings, **some)).agent() for some in ({}, changes)]
    assert agents[0] != agents[1]
    assert {type(agent.learner).__name__ for agent in agents} == {rule.title().replace("-", "")}


@pytest.mark.parametrize("changes", [{"every": 3}, {"bits": 16}])
def test_every_setting_of_relays_reaches_them(changes):
    agents = [Task.draw(Config(**TINY, protocol="relay", **some)).agent() for some in ({}, changes)]
    (name, value), *_ = changes.items()
    assert getattr(agents[0].protocol, name) != getattr(agents[1].protocol, name) == value


def test_large_steps_come_with_their_budget_and_their_coupling():
    averaged = Task.draw(Config(**TINY, rule="averaged", protocol="diffusion"))
    agent = averaged.agent()
    assert agent.step_size_at(0) == 30.0
    assert agent.compression == Komp.averaging(30.0)
    capped = [Task.draw(Config(**TINY, rule=rule)).agent().protocol.coupling.ceiling for rule in ("gradient", "averaged")]
    assert capped[0] == pytest.approx(10 * capped[1])  # what is stable falls with the step size


@pytest.mark.parametrize("name", ["gmm-logistic", "gmm-hinge", "heterogeneous"])
@pytest.mark.parametrize(("learner", "agents"), [("averaged", 4), ("second-order", 1), ("landmarks", 1)])
def test_rules_learn_more_from_few_samples(name, rule, agents, tmp_path):
    experiment = kinds("experiment")[name]
    config = experiment.config(
        samples=640, held_out=300, agents=agents, protocol="diffusion", partition="identical", rule=rule
    )
    summary = run(experiment, config, tmp_path).report.summary
    paper = learn(Task.draw(dataclasses.replace(config, rule="gradient")).network(), only_ends=True)
    assert summary["learner"] == rule
    assert summary["accuracy_worst"] > paper.last.score_worst


def test_a_rule_that_learns_alone_says_so():
    with pytest.raises(
        errors.InvalidArgument, match="gmm-logistic: protocol must be local with the learner second-order, got capped-penalty"
    ):
        Config(rule="second-order")
    assert Config(rule="second-order", protocol="local").agents == 20
    assert Task.draw(Config(**{**TINY, "agents": 1}, rule="second-order", protocol="penalty")).agent().protocol == Local()
    done = CliRunner().invoke(app, ["run", "heterogeneous", "--rule", "second-order"])
    assert done.exit_code == 2
    assert "`--protocol local`, or a network of one with `--agents 1`" in done.output + done.stderr


@pytest.fixture
def half():
    """A learning rule from outside."""

    @register("learner")
    @dataclass(frozen=True)
    class HalfSteps(Gradient):
        """Half of every step is enough."""

        def learn(self, model, inputs, move, compression):
            return super().learn(model, dataclasses.replace(inputs, step_size=inputs.step_size / 2), move, compression)

    yield HalfSteps
    del registry._known["learner"]["HalfSteps"]


def test_a_rule_from_outside_runs(half, tmp_path):
    def trained(**settings):
        return learn(Task.draw(Config(**TINY, protocol="local", parsimony=0.0, regularization=0.0, **settings)).network())

    assert trained(rule="half-steps").last.objective == pytest.approx(trained(step_size=1.5).last.objective)
    assert "half-steps" in CliRunner().invoke(app, ["list", "--rules"]).output
    with pytest.raises(
        errors.InvalidArgument, match="rule must be one of gradient, averaged, second-order, landmarks, half-steps"
    ):
        Config(rule="magic")
    command = ["run", "gmm-logistic", "--rule", "half-steps", "--agents", "3", "--samples", "96", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "summary.json").read_text())["learner"] == "half-steps"


def test_the_sweep_over_rules_has_every_rule_at_every_budget(tmp_path):
    class Canned(Session):
        def compute(self, cells):
            return {name: {**cell.function(cell.settings)} for name, cell in cells.items() if self.wanted(name)}

    session = Canned(tmp_path)
    session.wanted = lambda name: name.startswith(("alone", "reference"))
    found = budget_sweep.run(budget_sweep.Config(**TINY, seeds=1), session)
    rules = found.tables["rules"]
    assert len(rules) == 4 * 6
    assert set(found.figures) == {"rules"}
    for name in ("gradient", "averaged", "second-order", "landmarks"):
        orders = [row["model_order"] for row in rules if row["learner"] == name]
        assert orders[0] > orders[-1]
        assert all(row["cpu_seconds"] > 0 for row in rules)


@pytest.fixture
def coin():
    """An experiment from outside."""

    @dataclass(frozen=True, kw_only=True)
    class CoinConfig:
        owner: ClassVar[str] = "coin"

        seed: int = 0
        throws: int = 100

    def throw(config, session):
        heads = int(np.random.default_rng(config.seed).integers(2, size=config.throws).sum())
        return Findings(summary={"seed": config.seed, "heads": heads})

    def several(config, session):
        return Findings(summary=session.compute({"a": Cell(double, config.throws)})["a"])

    experiment = Experiment(name="coin", about="throws of a coin", config=CoinConfig, run=throw, table=several)
    yield register("experiment", experiment, name=experiment.name)
    del registry._known["experiment"]["coin"]


def printed(*arguments):
    done = CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_resuming_says_what_was_done_before(coin, tmp_path):
    folder = tmp_path / "new"
    options = ("coin", "--all", "--resume", "--out", folder)
    code, text = printed(*options)
    assert code == 0
    assert text.splitlines().count(f"nothing to resume in {folder}; starting from the beginning") == 1
    assert "1/1 cells: a, 0:00:00 left" in text
    code, text = printed(*options)
    assert code == 0
    assert "1/1 cells: already complete, 0:00:00 left" in text
    assert "starting" not in text
    code, text = printed(*options, "--set", "throws=8")
    assert code == 2
    assert text.strip() == "run: --resume must continue a run with the settings of that run, got others for cell a"


def test_a_network_with_nothing_to_resume_says_so(tmp_path):
    tiny = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    code, text = printed("gmm-logistic", *tiny, "--resume", "--out", tmp_path)
    assert code == 0
    assert text.splitlines().count(f"nothing to resume in {tmp_path}; starting from the beginning") == 1
    code, text = printed("gmm-logistic", *tiny, "--resume", "--out", tmp_path)
    assert code == 0
    assert "6/6 rounds: already complete" in text
    assert "starting" not in text


def test_the_progress_bar_follows_the_events():
    bar = experiments._Bar("gmm-logistic")

    def text(event):
        bar.show(event)
        return bar._bar.tasks[0].fields["text"]

    assert text(Started("gmm-logistic", None)) == "starting (the first run compiles)"
    assert text(Progress(done=0, total=None, unit="steps", part="filters")) == "filters"
    assert text(Progress(done=0, total=6, unit="rounds", part="one")) == "one: 0/6 rounds: starting (the first run compiles)"
    assert text(Progress(done=6, total=6, unit="rounds", part="one")) == "one: 6/6 rounds: already complete"
    assert text(Progress(done=3, total=6, unit="rounds", part="two")) == "two: 3/6 rounds: resumed"
    bar.show(CellFinished("a", {}))
    assert text(Progress(done=4, total=6, unit="cells", part="a")) == "4/6 cells: a"


def test_an_experiment_from_outside_is_listed_and_run(coin, tmp_path):
    listed = CliRunner().invoke(app, ["list"]).output
    assert "throws of a coin" in listed
    done = CliRunner().invoke(app, ["run", "coin", "--seed", "3", "--set", "throws=7", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["experiment"], summary["seed"], summary["complete"]) == ("coin", 3, True)
    assert 0 <= summary["heads"] <= 7
    done = CliRunner().invoke(app, ["run", "coin", "--all", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "nothing to resume" not in done.output
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

    registry._known["experiment"]["coin"] = dataclasses.replace(coin, run=fails)
    done = CliRunner().invoke(app, ["run", "coin", "--out", str(tmp_path)])
    assert done.exit_code == code
    assert str(outcome) in done.output + done.stderr
    assert flat(json.loads((tmp_path / "summary.json").read_text()))

"""Experiments on a small scale: what they write, that they can be interrupted, gone on with and repeated."""

import csv
import dataclasses
import json

import numpy as np
import pytest

from kernelmesh.experiments import EXPERIMENTS, gmm, heterogeneous, violation
from kernelmesh.experiments.base import Progress
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.gmm_logistic import Config
from kernelmesh.experiments.mixture import Task

TINY = {"agents": 4, "samples": 192, "held_out": 100}
TINIES = {
    "gmm-logistic": TINY,
    "gmm-hinge": TINY,
    "heterogeneous": TINY,
    "slabs": TINY,
}
SUMMARY = {
    "experiment",
    "seed",
    "protocol",
    "agents",
    "model_order_mean",
    "model_order_max",
    "disagreement",
    "objective",
}


def quiet(_):
    pass


@pytest.mark.parametrize("name", TINIES)
def test_runs_and_writes(name, tmp_path):
    experiment = EXPERIMENTS[name]
    config = experiment.config(**TINIES[name])
    report = experiment.run(config, quiet, tmp_path, False)
    report.write(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) >= SUMMARY | {"floats_per_sample", "bytes_per_sample", "seconds"}
    assert summary["complete"]
    page = (tmp_path / "report.html").read_text()
    assert "http:" not in page  # it needs nothing from anywhere
    assert "https:" not in page
    assert page.count("<img") == len(report.figures)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept.pop("experiment") == name
    assert experiment.config(**{key: float(v) if v == "inf" else v for key, v in kept.items()}) == config


def test_one_cell_of_the_table(tmp_path):
    config = heterogeneous.Config(**TINY)
    summary = heterogeneous.run(config, quiet, tmp_path).summary
    for name in ("accuracy_mean", "accuracy_worst", "centralised_accuracy", "bayes_accuracy", "svm_accuracy"):
        assert 0 < summary[name] <= 1
    assert summary["protocol"] == "exact-diffusion"


class Stop:
    """A watch that presses Ctrl-C after some steps."""

    def __init__(self, after):
        self.after = after

    def __call__(self, progress: Progress):
        if progress.done == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("protocol", ["penalty", "exact-diffusion"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(protocol, tmp_path):
    config = Config(**{**TINY, "samples": 640}, protocol=protocol, measure_every=3)
    whole = gmm.train(config, quiet)
    stopped = gmm.train(config, Stop(7), tmp_path)
    assert stopped.remark.startswith("Interrupted")
    assert stopped.newest.number == 7
    resumed = gmm.train(config, quiet, tmp_path, resume=True)
    assert not resumed.remark
    assert resumed.newest.number == whole.newest.number
    assert resumed.newest.samples == whole.newest.samples
    for f, g in zip(resumed.newest.functions, whole.newest.functions, strict=True):
        assert f.distance(g) < 1e-6 * g.norm()
    if protocol == "penalty":  # whole functions are sent again after a stop, points are not
        assert (resumed.newest.bytes_sent == whole.newest.bytes_sent).all()
    assert [line.samples for line in resumed.record if line.round % 3 == 0] == [
        line.samples for line in whole.record if line.round % 3 == 0
    ]
    once_more = gmm.train(config, Stop(1), tmp_path, resume=True)  # it is complete: there is nothing left to interrupt
    assert not once_more.remark
    assert once_more.last == resumed.last


def test_a_run_goes_on_only_with_its_own_settings(tmp_path):
    config = Config(**TINY)
    gmm.train(config, Stop(2), tmp_path)
    with pytest.raises(ValueError, match=r"--resume needs the settings of the interrupted run, but \['seed'\] differ"):
        gmm.train(dataclasses.replace(config, seed=1), quiet, tmp_path, resume=True)


def test_partitions_deal_out_what_they_say():
    for partition, classes in (("identical", 5), ("two-class", 2), ("one-class", 1)):
        task = Task.draw(heterogeneous.Config(partition=partition, agents=5, samples=500, passes=2))
        seen = [np.unique(np.concatenate([batch.targets for batch in stream])) for stream in task.streams]
        assert {len(labels) for labels in seen} == {classes}
        assert set(np.concatenate(seen)) == set(range(5))
        assert len({len(stream) for stream in task.streams}) == 1  # everybody goes on until everybody is done


def test_the_whole_table_can_be_interrupted_and_gone_on_with(tmp_path):
    config = heterogeneous.Config(**TINY, seeds=1)
    partial = heterogeneous.sweep(config, Stop(3), tmp_path)
    assert partial.remark.startswith("Interrupted")
    kept = len(list((tmp_path / "cells").glob("*.json")))
    assert kept >= 3
    counts = []
    report = heterogeneous.sweep(config, lambda step: counts.append(step.done), tmp_path, resume=True)
    assert counts[0] == kept
    report.write(tmp_path)
    assert not report.remark
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert len(rows) == 3 * 7 + 2
    assert report.tables["goals"] == []  # they are for the full size only
    full = [{**row, "partition": row["partition"]} for row in report.tables["table"]]
    goals = heterogeneous._goals(full, {"centralized": 0.5, "svm": 0.5, "bayes": 0.6})
    assert len(goals) == 10
    assert {line["met"] for line in goals} <= {"yes", "NO"}


def double(settings):
    return {"twice": 2 * settings}


def test_cells_are_kept_only_for_their_own_settings_and_damage_is_run_again(tmp_path):
    jobs = {name: (double, number) for number, name in enumerate("abc")}
    first = run_cells(jobs, watch=quiet, folder=tmp_path, resume=False)
    assert first == {"a": {"twice": 0}, "b": {"twice": 2}, "c": {"twice": 4}}
    for damage in ("{}", "[1]", "", "\x00"):
        (tmp_path / "cells" / "b.json").write_text(damage)
        assert run_cells(jobs, watch=quiet, folder=tmp_path, resume=True) == first
    with pytest.raises(
        ValueError, match="--resume needs the settings of the interrupted run, but those of cell b differ"
    ):
        run_cells({**jobs, "b": (double, 5)}, watch=quiet, folder=tmp_path, resume=True)


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

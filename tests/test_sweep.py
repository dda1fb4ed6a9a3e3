"""Sweeps: every combination and seed, one table and figure; cells that fail, that are done, and mistakes in the grid."""

import contextlib
import csv
import json
import os
import signal
from concurrent.futures import Executor, Future

import pytest
from typer.testing import CliRunner

from kernelmesh.cli import app
from kernelmesh_experiments.base import run
from kernelmesh_experiments.cells import Cell, run_cells
from kernelmesh_experiments.events import CellFailed, CellFinished, Complete, Incomplete, Interrupted, Progress
from kernelmesh_experiments.gmm import LogisticConfig
from kernelmesh_experiments.sweep import Grid, cell, sweep

TINY = {"agents": 3, "samples": 96, "held_out": 50}


class Here(Executor):
    """Computes in this process what it is given, at once."""

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except RuntimeError as error:
            future.set_exception(error)
        return future


def here(workers):
    return contextlib.nullcontext(Here())


def table(folder, name="table"):
    return list(csv.DictReader((folder / f"{name}.csv").read_text().splitlines()))


def test_a_sweep_is_the_runs_it_is_made_of(tmp_path):
    grid = Grid(experiment="gmm-logistic", axes={"step_size": (1.0, 3.0)}, seeds=2, fixed=TINY)
    events = []
    finished = run(sweep(here), grid, tmp_path, observers=(events.append,))
    assert finished.outcome == Complete()
    steps = [event for event in events if isinstance(event, Progress)]
    assert [(step.done, step.total) for step in steps] == [(n, 4) for n in range(5)]
    cells = table(tmp_path, "cells")
    assert [(row["step_size"], row["seed"]) for row in cells] == [("1.0", "0"), ("1.0", "1"), ("3.0", "0"), ("3.0", "1")]
    config = LogisticConfig(**TINY, step_size=3.0, seed=1)
    alone = cell(("gmm-logistic", config))
    assert float(cells[3]["objective"]) == alone["objective"]
    rows = table(tmp_path)
    mean = (float(cells[2]["accuracy_mean"]) + alone["accuracy_mean"]) / 2
    assert float(rows[1]["accuracy_mean"]) == pytest.approx(mean)
    assert not {"agents", "seed_std"} & set(rows[0])  # settings are no measures
    assert {"figure.png", "table.csv", "cells.csv", "report.json"} <= {file.name for file in finished.files}


def test_resume_skips_what_is_done(tmp_path):
    grid = Grid(experiment="gmm-logistic", axes={"step_size": (1.0, 3.0, 8.0)}, fixed=TINY)
    seen = []
    options = {"observers": (seen.append,), "stop": lambda: any(isinstance(event, CellFinished) for event in seen)}
    stopped = run(sweep(here), grid, tmp_path, **options)
    done = sum(isinstance(event, CellFinished) for event in seen)
    assert stopped.outcome == Interrupted(done=done, total=3, unit="cells")
    assert 1 <= len(table(tmp_path, "cells")) == done < 3
    again = []
    finished = run(sweep(here), grid, tmp_path, resume=True, observers=(again.append,))
    assert finished.outcome == Complete()
    assert sum(isinstance(event, CellFinished) for event in again) == 3 - done
    assert len(table(tmp_path, "cells")) == 3


def test_invalid_combinations_are_reported_and_the_others_run(tmp_path):
    """`every` is for protocols that exchange functions: one of four combinations is refused."""
    axes = {"protocol": ("diffusion", "penalty"), "every": (1, 2)}
    finished = run(sweep(here), Grid(experiment="gmm-logistic", axes=axes, fixed=TINY), tmp_path)
    assert isinstance(finished.outcome, Incomplete)
    assert finished.outcome.exit_code == 1
    assert (finished.outcome.done, finished.outcome.total) == (3, 4)
    cells = table(tmp_path, "cells")
    assert [bool(row["failed"]) for row in cells] == [False, False, False, True]
    assert "every must be 1 with penalty" in cells[3]["failed"]
    assert [row["failed"] for row in table(tmp_path)] == ["0", "0", "0", "1"]


def breaks(how):
    if how == "raises":
        raise RuntimeError("no luck")
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"how": how}


@pytest.mark.slow
def test_a_cell_that_fails_or_kills_its_worker_leaves_the_others_alone(tmp_path):
    cells = {name: Cell(breaks, name) for name in ("dies", "raises", "a")}
    failures, events = {}, []
    done = run_cells(cells, folder=tmp_path, failures=failures, publish=events.append)
    assert done == {"a": {"how": "a"}}
    assert failures == {"raises": "no luck", "dies": "the worker process was killed (out of memory?)"}
    assert {event.name for event in events if isinstance(event, CellFailed)} == set(failures)
    assert events[-1].done == 3


def test_resume_tries_again_what_failed(tmp_path):
    cells = {name: Cell(breaks, name) for name in ("raises", "a")}
    for expected in (["raises", "a"], ["raises"]):
        failures, events = {}, []
        run_cells(cells, folder=tmp_path, resume=True, failures=failures, publish=events.append, pool=here)
        assert failures == {"raises": "no luck"}
        told = [event.part for event in events if isinstance(event, Progress) and event.part]
        assert sorted(told) == sorted(expected)  # whichever is done first
    with pytest.raises(RuntimeError, match="no luck"):
        run_cells({"raises": cells["raises"]}, folder=tmp_path, pool=here)


def command(*arguments):
    return CliRunner().invoke(app, ["sweep", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gmm-logistik", "--grid", "seed=1"], "did you mean gmm-logistic?"),
        (["gmm-logistic"], "sweep: --grid must be given at least once"),
        (
            ["gmm-logistic", "--grid", "stepsize=1,3"],
            "must name a setting of gmm-logistic, got 'stepsize=1'; did you mean step_size?",
        ),
        (["gmm-logistic", "--grid", "step_size"], "sweep: --grid must be NAME=VALUE,VALUE"),
        (["gmm-logistic", "--grid", "step_size=1,x"], "sweep: --grid step_size must be of type float, got 'x'"),
        (["gmm-logistic", "--grid", "step_size=1,1"], "have distinct values"),
        (["gmm-logistic", "--grid", "step_size=1", "--grid", "step_size=3"], "--grid step_size must be given once"),
        (["gmm-logistic", "--grid", "seed=1,2"], "use --seeds N for N seeds"),
        (["gmm-logistic", "--grid", "step_size=1", "--seeds", "0"], "--seeds"),
        (["gmm-logistic", "--grid", "step_size=1", "--engine", "simulation"], "--engine must be one of processes, ray"),
        (["gmm-logistic", "--grid", "step_size=1", "--address", "auto"], "--address must be omitted with --engine processes"),
        (["gmm-logistic", "--grid", "step_size=1", "--set", "step_size=3"], "be omitted if it is in --grid"),
    ],
)
def test_mistakes_are_named_before_the_first_run(arguments, words, tmp_path):
    result = command(*arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_table_and_resumes(tmp_path):
    arguments = ["gmm-logistic", "--grid", "step_size=1,3", "--out", str(tmp_path)]
    arguments += [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    result = command(*arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "config.json").read_text())["axes"] == {"step_size": [1.0, 3.0]}
    page = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert page.exit_code == 0, page.stderr
    assert "kernelmesh run" not in (tmp_path / "report.html").read_text()
    assert "already complete" in command(*arguments, "--resume", "--show", "model_order_mean").stdout
    wrong = command(*arguments, "--resume", "--show", "order_mean")
    assert wrong.exit_code == 2
    assert "did you mean model_order_mean?" in wrong.stderr

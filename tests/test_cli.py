import csv
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from kernelmesh.cli import app

SMALL = ["--samples", "320", "--agents", "4"]


def kernelmesh(*arguments, **options):
    """In this process, where nothing of a process matters."""
    result = CliRunner().invoke(app, list(map(str, arguments)), **options)
    return SimpleNamespace(returncode=result.exit_code, stdout=result.stdout, stderr=result.stderr)


def run_program(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_list_names_the_experiments_and_protocols():
    assert "gmm-logistic" in kernelmesh("list").stdout
    found = kernelmesh("list", "--protocols").stdout
    assert all(name in found for name in ("local", "diffusion", "capped-penalty"))


def test_the_settings_of_an_experiment_are_shown():
    done = kernelmesh("show", "drift", env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    lines = [line.split()[:6] for line in done.stdout.splitlines()]
    assert ["window", "1000", "number", "of", "samples", "in"] in lines


def test_missing_packages_are_named():
    done = run_program("import sys; sys.modules['matplotlib'] = None; from kernelmesh.cli import app; app(['run', 'drift'])")
    assert done.returncode == 1
    assert done.stderr == "experiments need packages that are not installed; pip install 'kernelmesh[experiments]'\n"


def test_version():
    assert kernelmesh("--version").stdout.startswith("kernelmesh 0.")


def test_run_writes_its_results_and_its_settings_repeat_it(tmp_path):
    def run(name, *options, seed=3):
        done = kernelmesh("run", "gmm-logistic", "--seed", seed, "--out", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        return (tmp_path / name / "rounds.csv").read_text()

    first = run("new/folder", *SMALL)
    folder = tmp_path / "new" / "folder"
    written = "checkpoint.safetensors config.json data.png data.svg figure.png figure.svg recording.safetensors "
    assert sorted(os.listdir(folder)) == [*written.split(), "report.json", "rounds.csv", "summary.json"]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["seed"], summary["agents"], summary["complete"]) == (3, 4, True)
    assert 0.3 < summary["accuracy_worst"] <= summary["accuracy_mean"] <= 1
    rows = list(csv.DictReader(first.splitlines()))
    assert int(rows[-1]["samples"]) == 320
    assert float(rows[-1]["objective"]) == summary["objective"]
    assert run("again", "--config", folder / "config.json") == first
    assert run("other", *SMALL, seed=2) != first
    other = kernelmesh("run", "gmm-hinge", "--config", folder / "config.json", "--out", tmp_path / "c")
    assert other.returncode == 2
    assert "--config must come from the experiment gmm-hinge" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "gmm-logistics"], "NAME must be one of gmm-logistic, gmm-hinge"),
        (["show", "drif"], "show: NAME must be one of gmm-logistic"),
        (["run", "gmm-logistic", "--agents", "0"], "gmm-logistic: agents must be an integer >= 1, got 0"),
        (["run", "gmm-logistic", "--out", "/dev/null/x"], "run: --out must be a writable folder"),
        (["run", "gmm-logistic", "--set", "bandwith=2"], "got 'bandwith=2'; did you mean bandwidth?"),
        (["run", "gmm-logistic", "--set", "bandwidth"], "run: --set must be NAME=VALUE, got 'bandwidth'"),
        (["run", "gmm-logistic", "--set", "samples=many"], "samples must be of type int, got 'many'"),
        (["run", "drift", "--agents", "3"], "run: --agents must name a setting of drift"),
        (["run", "one-class", "--protocol", "local"], "one-class: protocol must be omitted"),
        (["run", "gmm-logistic", "--config", "nowhere.json"], "run: --config must be a readable config.json"),
    ],
)
def test_mistakes_are_named(arguments, words):
    done = kernelmesh(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_divergence_is_reported_and_results_are_kept(tmp_path):
    wild = ["--set", "step_size=1e200", "--set", "regularization=0", "--protocol", "local", "--out", tmp_path]
    done = kernelmesh("run", "gmm-logistic", *SMALL, *wild)
    assert done.returncode == 1
    assert "run: agent 0 diverged at sample" in done.stderr
    # in a process of its own, because warnings are errors in this one
    command = ["run", "gmm-logistic", "--protocol", "penalty", "--out", str(tmp_path)]
    done = run_program(f"from kernelmesh.cli import app; app({command!r})")
    assert done.returncode == 1
    assert "warning: Penalty: with step size 3 in this network the penalty must stay below" in done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["complete"], summary["outcome"]) == (False, "diverged")
    assert "lower or cap the penalty" in summary["remark"]
    assert (tmp_path / "figure.png").exists()


def test_ctrl_c_keeps_the_results(tmp_path):
    options = ["--samples", "20000", "--protocol", "diffusion", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "kernelmesh", "run", "gmm-logistic", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + 120
            while not (tmp_path / "recording.safetensors").exists():  # which is written with the first measurement
                assert time.monotonic() < end
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=180)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Interrupted" in stderr
    assert 0 < json.loads((tmp_path / "summary.json").read_text())["samples_per_agent"] < 20_000
    assert (tmp_path / "checkpoint.safetensors").exists()
    done = kernelmesh("run", "gmm-logistic", *SMALL, "--resume", "--out", tmp_path)
    assert done.returncode == 2
    assert "--resume must continue a run with the settings of that run" in done.stderr

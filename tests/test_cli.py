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
    command = [sys.executable, "-m", "kernelmesh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def inside(*arguments, **options):
    """As `kernelmesh`, in this process: quicker, and the same where nothing of a process matters."""
    result = CliRunner().invoke(app, arguments, **options)
    return SimpleNamespace(returncode=result.exit_code, stdout=result.stdout, stderr=result.stderr)


def test_list_names_the_experiments():
    done = kernelmesh("list")
    assert done.returncode == 0
    assert "gmm-logistic" in done.stdout
    done = inside("list", "--protocols")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("local", "diffusion", "capped-penalty"))


@pytest.mark.parametrize(
    "command", [["show", "drift"], ["run", "drift", "--help"], ["run", "--seed", "3", "drift", "--help"]]
)
def test_the_settings_of_an_experiment_are_shown(command):
    done = kernelmesh(*command, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["samples", "20000", "samples", "per", "stream"] in lines
    assert ["degrees", "90", "rotation", "of", "the", "mixture"] in [line[:6] for line in lines]
    assert "`--all` computes the full table." in done.stdout


def test_help_without_an_experiment_shows_no_settings():
    done = kernelmesh("run", "--help")
    assert done.returncode == 0
    assert "meaning" not in done.stdout


def test_missing_packages_are_named():
    hidden = "import sys; sys.modules['matplotlib'] = None; from kernelmesh.cli import app; app(['run', 'drift'])"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == "experiments need packages that are not installed; pip install 'kernelmesh[experiments]'\n"


def test_the_commands_load_plotting_and_solvers_only_when_they_run():
    check = "import sys, kernelmesh.cli.experiments; sys.exit(any(m in sys.modules for m in ('matplotlib', 'PIL', 'pooch')))"
    assert subprocess.run([sys.executable, "-c", check], timeout=120, check=False).returncode == 0


def test_version():
    assert kernelmesh("--version").stdout.startswith("kernelmesh 0.")


def test_run_writes_what_it_says(tmp_path):
    done = kernelmesh("run", "gmm-logistic", "--seed", "3", "--out", str(tmp_path / "new" / "folder"), *SMALL)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "new" / "folder"
    assert sorted(os.listdir(folder)) == sorted(
        [
            "checkpoint.safetensors",
            "config.json",
            "data.png",
            "data.svg",
            "figure.png",
            "figure.svg",
            "recording.safetensors",
            "report.json",
            "rounds.csv",
            "summary.json",
        ]
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["experiment"] == "gmm-logistic"
    assert (summary["seed"], summary["agents"], summary["protocol"]) == (3, 4, "capped-penalty")
    assert 0.3 < summary["accuracy_worst"] <= summary["accuracy_mean"] <= 1
    assert summary["complete"]
    rows = list(csv.DictReader((folder / "rounds.csv").read_text().splitlines()))
    assert int(rows[-1]["samples"]) == 320
    assert float(rows[-1]["objective"]) == summary["objective"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("protocol", ["capped-penalty", "diffusion", "hilbert", "local", "penalty"])
def test_every_protocol_runs(protocol, tmp_path):
    options = ["--protocol", protocol, "--partition", "one-class", "--out", str(tmp_path)]
    done = inside("run", "gmm-logistic", *options, *SMALL)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["protocol"] == protocol


def test_a_seed_repeats_the_run(tmp_path):
    def run(folder, seed):
        assert kernelmesh("run", "gmm-logistic", "--seed", seed, "--out", str(tmp_path / folder), *SMALL).returncode == 0
        return (tmp_path / folder / "rounds.csv").read_text()

    first = run("a", "1")
    assert run("b", "1") == first
    assert run("c", "2") != first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "gmm-logistics"], "NAME must be one of gmm-logistic, gmm-hinge, one-class"),
        (["run", "gmm-logistic", "--agents", "0"], "gmm-logistic: agents must be an integer >= 1, got 0"),
        (["run", "gmm-logistic", "--protocol", "magic"], "protocol must be one of local, penalty, implicit-penalty"),
        (["run", "gmm-logistic", "--seed", "-1"], "seed must be an integer >= 0"),
        (["run", "gmm-logistic", "--out", "/dev/null/x"], "run: --out must be a writable folder"),
        (
            ["run", "gmm-logistic", "--set", "bandwith=2"],
            "run: --set must name a setting of gmm-logistic, got 'bandwith=2'; did you mean bandwidth?; `kernelmesh show gmm",
        ),
        (["run", "gmm-logistic", "--set", "bandwidth"], "run: --set must be NAME=VALUE, got 'bandwidth'"),
        (["show", "drif"], "show: NAME must be one of gmm-logistic"),
        (["run", "gmm-logistic", "--set", "samples=many"], "run: --set samples must be of type int, got 'many'"),
        (
            ["run", "drift", "--partition", "one-class"],
            "run: --partition must be a setting of drift, got 'one-class'; `kernelmesh show drift` lists its settings",
        ),
        (["run", "budget-sweep", "--all"], "run: --all must be used with an experiment that has a table, got budget-sweep"),
        (
            ["run", "heterogeneous", "--all", "--protocol", "local"],
            "run: --protocol must be omitted with --all, which chooses it, got 'local'",
        ),
        (
            ["run", "budget-sweep", "--set", "protocol=local"],
            "run: --set protocol must be omitted with budget-sweep, which chooses it, got 'local'",
        ),
        (["run", "heterogeneous", "--samples", "3", "--agents", "2"], "run: samples must be enough for one mini-batch"),
        (["run", "gmm-logistic", "--config", "nowhere.json"], "run: --config must be a readable config.json"),
        (["run", "gmm-logistic", "--set", "bandwidth=-1"], "gmm-logistic: bandwidth must be a finite number > 0, got -1.0"),
    ],
)
def test_mistakes_are_named(arguments, words):
    done = inside(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_settings_of_a_run_repeat_it(tmp_path):
    first = kernelmesh("run", "gmm-logistic", "--seed", "5", *SMALL, "--protocol", "local", "--out", str(tmp_path / "a"))
    assert first.returncode == 0, first.stderr
    config = str(tmp_path / "a" / "config.json")
    again = kernelmesh("run", "gmm-logistic", "--config", config, "--out", str(tmp_path / "b"))
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "a" / "rounds.csv").read_text() == (tmp_path / "b" / "rounds.csv").read_text()
    other = kernelmesh("run", "gmm-hinge", "--config", config, "--out", str(tmp_path / "c"))
    assert other.returncode == 2
    assert "--config must come from the experiment gmm-hinge, got one from gmm-logistic" in other.stderr


def test_divergence_in_the_first_round_is_an_error(tmp_path):
    wild = ["--set", "step_size=1e200", "--set", "regularization=0", "--protocol", "local", "--out", str(tmp_path)]
    done = kernelmesh("run", "gmm-logistic", *SMALL, *wild)
    assert done.returncode == 1
    assert "run: agent 0 diverged at sample" in done.stderr
    assert "Traceback" not in done.stderr


def test_divergence_is_reported_and_what_was_computed_is_kept(tmp_path):
    done = kernelmesh("run", "gmm-logistic", "--protocol", "penalty", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "warning: Penalty: with step size 3 in this network the penalty must stay below" in done.stderr
    assert "diverged at sample" in done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["complete"]
    assert summary["outcome"] == "diverged"
    assert "lower or cap the penalty" in summary["remark"]
    assert (tmp_path / "figure.png").exists()


def cpu_seconds(pid):
    """How long a process has been computing."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_keeps_what_was_computed(tmp_path):
    assert kernelmesh("run", "gmm-logistic", *SMALL, "--out", str(tmp_path)).returncode == 0  # all is compiled now
    command = [sys.executable, "-m", "kernelmesh", "run", "gmm-logistic", "--samples", "400000", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while cpu_seconds(process.pid) < 6.0:  # on a busy machine, starting can take any time
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Interrupted" in complaint
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert 0 < summary["samples_per_agent"] < 400_000
    assert (tmp_path / "checkpoint.safetensors").exists()
    done = kernelmesh("run", "gmm-logistic", *SMALL, "--resume", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "--resume must continue a run with the settings of that run, got others for agents, samples" in done.stderr

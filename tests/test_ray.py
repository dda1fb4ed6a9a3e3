"""Agents on Ray: the rounds are those of the simulation, and mistakes are told at once."""

import csv
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from kernelmesh import simulate
from kernelmesh.cli import app
from test_engines import AGENTS, assert_bytes_of_crossing_edges, assert_equal, network, rounds

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelmesh[ray]'")
from kernelmesh.runtimes.engines import LostShard  # noqa: E402
from kernelmesh.runtimes.ray import RayEngine  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "ray: --address must be the address of a running Ray cluster, got '127.0.0.1:9'"),
        ("nowhere", "ray: --address must be HOST:PORT or auto, got 'nowhere'"),
        ("10.0.0.1:65536", "ray: --address must be HOST:PORT or auto, got '10.0.0.1:65536'"),
    ],
)
def test_a_wrong_address_is_told_at_once(address, words):
    assert not ray.is_initialized()  # these come first
    with pytest.raises(ValueError, match=words):
        RayEngine(2, address=address)


def test_a_server_that_is_not_ray_is_told_within_seconds():
    assert not ray.is_initialized()
    with socketserver.TCPServer(("127.0.0.1", 0), _Web) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(ValueError, match=r"\(the server there is not Ray\); start one there with"):
            RayEngine(2, address=f"127.0.0.1:{server.server_address[1]}")
        server.shutdown()
        thread.join()


class _Web(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture(scope="module")
def local():
    """A cluster on this machine, shared by the engines below."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def two(local):
    with RayEngine(2) as engine:
        yield engine


@pytest.mark.parametrize("kind", ["penalty", "diffusion", "relay"])
def test_rounds_are_those_of_the_simulation(two, kind):
    """Questions and answers, functions, and sums; all protocols are in the slow tests."""
    assert_equal(rounds(kind, two), rounds(kind))


def test_only_messages_over_crossing_edges_are_sent(two):
    assert_bytes_of_crossing_edges(two)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [3, 6])
@pytest.mark.parametrize("kind", AGENTS)
def test_rounds_on_more_actors(local, parts, kind):
    settings = {"rows": 800, "keep": (1, 20, 50)}
    with RayEngine(parts) as engine:
        assert_equal(rounds(kind, engine, **settings), rounds(kind, **settings), keep=settings["keep"])


@pytest.mark.slow
def test_the_loss_of_an_actor_ends_the_run_and_the_engine_starts_again(local):
    with RayEngine(2) as engine:
        run = simulate(*network(), engine=engine)
        next(run)
        ray.kill(engine._actors[1])
        with pytest.raises(LostShard, match=r"an actor of 2 was lost .*--resume"):
            list(run)
        assert_equal(rounds(engine=engine), rounds())


@pytest.mark.slow
def test_sweeps_on_ray(tmp_path):
    arguments = ["sweep", "gmm-logistic", "--grid", "step_size=1,3", "--engine", "ray", "--out", str(tmp_path)]
    arguments += ["--set", "agents=3", "--set", "samples=96", "--set", "held_out=50"]
    result = CliRunner().invoke(app, arguments)
    ray.shutdown()
    assert result.exit_code == 0, result.stderr
    assert len(list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_the_driver_can_be_killed_and_resumed(engine, tmp_path):
    """Killed without warning after a checkpoint; the resumed run ends where one that was never killed does."""
    settings = ["--agents", "6", "--samples", "6400", "--protocol", "penalty", "--set", "penalty_limit=0.5"]
    command = [sys.executable, "-m", "kernelmesh", "run", "gmm-logistic", *settings]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    spread = [*command, "--engine", engine, "--workers", "2", "--out", str(tmp_path / "killed")]
    with (tmp_path / "errors").open("w") as errors, subprocess.Popen(spread, stdout=errors, stderr=errors) as process:
        while not (tmp_path / "killed" / "checkpoint.safetensors").exists():
            assert process.poll() is None, (tmp_path / "errors").read_text()
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "killed" / "summary.json").exists()
    subprocess.run([*spread, "--resume"], check=True, capture_output=True)
    whole, resumed = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "killed"))
    different = {key for key in whole if whole[key] != resumed[key]}
    assert different <= {"seconds"}

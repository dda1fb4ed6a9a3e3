"""Agents on Ray: the rounds are those of the simulation, actors and nodes may be lost, and mistakes are told at once."""

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
from kernelmesh.experiments.gmm import LogisticConfig
from kernelmesh.experiments.mixture import Task
from kernelmesh.runtimes.engines.partition import crossing
from test_engines import PROTOCOLS, SMALL, assert_equal, rounds

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelmesh[ray]'")
from kernelmesh.runtimes.ray import RayEngine  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--address", "127.0.0.1:9"], "run: --address must be the address of a running Ray cluster, got '127.0.0.1:9'"),
        (["--workers", "0"], "run: --workers must be at least 1, got 0"),
        (["--address", "nowhere"], "run: --address must be HOST:PORT or auto, got 'nowhere'"),
        (["--address", "10.0.0.1:65536"], "run: --address must be HOST:PORT or auto, got '10.0.0.1:65536'"),
    ],
)
def test_a_wrong_address_is_told_at_once(arguments, words, tmp_path):
    assert not ray.is_initialized()  # these come first
    result = CliRunner().invoke(app, ["run", "gmm-logistic", "--engine", "ray", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert words in result.stderr.replace("\n", "")


def test_whoever_listens_there_and_is_not_ray_is_told_within_seconds(tmp_path):
    assert not ray.is_initialized()
    with socketserver.TCPServer(("127.0.0.1", 0), _Web) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        options = ["--engine", "ray", "--address", f"127.0.0.1:{server.server_address[1]}", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, ["run", "gmm-logistic", *options])
        server.shutdown()
        thread.join()
    assert result.exit_code == 2
    assert "(the server there is not Ray); start one there with" in result.stderr.replace("\n", "")


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


@pytest.mark.parametrize("protocol", ["penalty", "diffusion"])
def test_rounds_are_those_of_the_simulation(two, protocol):
    """One protocol that asks and answers, and one that sends functions; all of them are in the slow tests."""
    assert_equal(rounds(two, protocol=protocol), rounds(protocol=protocol))


def test_bytes_between_actors_are_those_of_the_crossing_edges(two):
    ours = rounds(two, protocol="diffusion")
    graph, expected, last = Task.draw(LogisticConfig(**SMALL)).graph, 0.0, 0
    degree = [len(around) for around in graph.neighbors]
    for now in ours:  # with diffusion, an agent sends the same to each neighbor
        sent, last = now.bytes_sent - last, now.bytes_sent
        expected += sum(sent[i] / degree[i] + sent[j] / degree[j] for i, j in crossing(graph, two.placement))
    assert expected <= two.batch_bytes <= 1.05 * expected


@pytest.mark.slow
def test_an_actor_that_dies_is_replaced(local, tmp_path):
    expected = rounds(protocol="penalty", samples=320, keep=(10,))
    task, ours = Task.draw(LogisticConfig(**{**SMALL, "samples": 320}, protocol="penalty")), []
    with RayEngine(2, checkpoints=tmp_path, every=3) as engine:
        for now in simulate(task.agent(), task.graph, task.streams, engine=engine):
            if now.number == 10:
                now.functions  # noqa: B018
            ours.append(now)
            if now.number == 7:
                ray.kill(engine._actors[1])
        assert_equal(ours, expected, keep=(10,))


@pytest.fixture(scope="module")
def four(local):
    with RayEngine(4) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_twenty_agents_for_a_hundred_rounds_on_two_and_four_actors(two, four, protocol):
    """The paper's network and data."""
    settings = {"protocol": protocol, "agents": 20, "samples": 3200, "keep": (1, 50, 100)}
    expected = rounds(**settings)
    assert expected[-1].number == 100
    for engine in (two, four):
        assert_equal(rounds(engine, **settings), expected, keep=settings["keep"])


@pytest.mark.slow
def test_a_node_that_is_killed_costs_nothing_but_time(tmp_path):
    from ray.cluster_utils import Cluster

    def node_of(_):  # here, so that it travels as it is: workers cannot import the tests
        return ray.get_runtime_context().get_node_id()

    expected = rounds(protocol="penalty", samples=640, keep=(20,))
    if ray.is_initialized():
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        task, ours = Task.draw(LogisticConfig(**{**SMALL, "samples": 640}, protocol="penalty")), []
        with RayEngine(2, checkpoints=tmp_path, every=4) as engine:
            for now in simulate(task.agent(), task.graph, task.streams, engine=engine):
                if now.number == 20:
                    now.functions  # noqa: B018
                ours.append(now)
                if now.number == 10:
                    here = ray.get_runtime_context().get_node_id()
                    nodes = [ray.get(actor.__ray_call__.remote(node_of)) for actor in engine._actors]
                    assert set(nodes) == {here, other.node_id}  # one actor on each
                    cluster.remove_node(other, allow_graceful=False)
        assert_equal(ours, expected, keep=(20,))
    finally:
        ray.shutdown()
        cluster.shutdown()


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

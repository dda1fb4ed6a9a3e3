"""The dashboard of a mesh: what agents report as frames, and real agents that vanish and come back."""

import base64
import io
import time

import numpy as np
import pytest
from PIL import Image

from kernelmesh.dashboard.frames import marks
from kernelmesh.dashboard.mesh_source import MeshSource, frame_of
from kernelmesh.dashboard.recording import AGENT, EDGE, State, Subject
from kernelmesh.deploy.watching import AgentView
from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.status import NeighborStatus, Status
from mesh import Mesh

LINE = Subject(names=("a", "b", "c"), edges=np.array([[0, 1], [1, 2]]))


def view(name, *, stale=False, **numbers):
    status = {"samples": 64, "steps": 2, "steps_here": 2, "seconds": 1.0, "order": 7, "bytes_sent": 100, "floats_sent": 10}
    return AgentView(name=name, stale=stale, status=Status(name=name, mode="free", **{**status, **numbers}))


def test_what_agents_report_becomes_a_frame():
    ignored = {"a": NeighborStatus(alive=True, ended=False, ignored=True, refused=3)}
    views = [
        view("a", disagreement=0.2, loss=0.5, bytes_sent=300),
        view("b", disagreement=0.4, ended=True, neighbors=ignored, bytes_sent=200, samples=128),
        AgentView(name="c"),
    ]
    frame = frame_of(3, views, LINE)
    column = dict(zip(AGENT, frame.agents.T, strict=True))
    assert column["state"].tolist() == [State.LEARNING, State.ENDED, State.AWAY]
    assert column["samples"].tolist() == [64, 128, 0]
    assert column["refused"].tolist() == [3, 0, 0]  # marked is who sent them
    edges = dict(zip(EDGE, frame.edges.T, strict=True))
    np.testing.assert_allclose(edges["disagreement"], [0.3, 0.4], rtol=1e-6)  # c has not said anything
    assert edges["bytes"].tolist() == [400, 100]
    assert frame.totals["round"] == 3
    assert frame.totals["samples"] == 128
    assert frame.totals["disagreement"] == pytest.approx(0.6)


def test_an_agent_that_vanishes_is_marked():
    frames = [frame_of(n, [view("a"), view("b", stale=n == 2), view("c")], LINE) for n in (1, 2, 3)]
    assert [mark["text"] for mark in marks(LINE, frames)] == ["Agent b went away.", "Agent b came back."]


def test_a_folder_without_agents_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="one TOML file per agent"):
        MeshSource(tmp_path)


def until(source, holds, *, seconds=60.0):
    end = time.monotonic() + seconds
    while True:
        source.poll()
        if holds(source.news()):
            return
        assert time.monotonic() < end, source.news()
        time.sleep(0.1)


@pytest.mark.xdist_group("processes")
def test_real_agents_are_watched_vanish_and_come_back(tmp_path):
    with Mesh(tmp_path / "mesh", agents=3, samples=4000, rate=500.0) as mesh:
        source = MeshSource(mesh.folder, timeout=1.0)
        try:
            source.poll()
            assert (source.news().status, source.frames()["count"]) == ("waiting", 0)
            assert "No agent answers" in source.news().message
            mesh.start()
            until(source, lambda news: news.status == "running" and "not answer" not in news.message)
            assert source.describe()["names"] == mesh.names
            assert np.flatnonzero(source.subject.seen[0]).tolist() == [0, 3]
            rounds = source.recording.frames[-1].round
            drawn = source.function(1, rounds)
            data = drawn["image"].partition("base64,")[2]
            with Image.open(io.BytesIO(base64.b64decode(data))) as image:
                assert image.size == (60, 60)
            mesh.kill("agent-1")
            until(source, lambda news: "agent-1 does not answer" in news.message)
            assert source.recording.frames[-1].agents[1, AGENT.index("state")] == State.AWAY
            assert source.function(1, 10**6)["image"]  # the newest picture stays
            mesh.start("agent-1")
            until(source, lambda news: news.status == "running" and "not answer" not in news.message)
            assert source.recording.frames[-1].agents[1, AGENT.index("state")] != State.AWAY
        finally:
            source.close()

"""The dashboard of a mesh: what agents report as frames, and real agents that vanish and come back."""

import base64
import io
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from kernelmesh.dashboard.mesh_source import MeshSource, frame_of
from kernelmesh.dashboard.recording import AGENT, EDGE, Recording, State, Subject, marks
from kernelmesh.dashboard.sources import Shown, Source
from kernelmesh.deploy.watching import AgentView
from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.status import NeighborStatus, Status
from mesh import Mesh

LINE = Subject(names=("a", "b", "c"), edges=np.array([[0, 1], [1, 2]]))


def view(name, *, stale=False, **numbers):
    status = {"samples": 64, "steps": 2, "steps_here": 2, "seconds": 1.0, "order": 7, "bytes_sent": 100, "floats_sent": 10}
    return AgentView(name=name, stale=stale, status=Status(name=name, mode="free", **{**status, **numbers}))


def test_statuses_become_a_frame():
    ignored = {"a": NeighborStatus(alive=True, ended=False, ignored=True, refused=3, left_out=1)}
    views = [
        view("a", disagreement=0.2, loss=0.5, bytes_sent=300),
        view("b", disagreement=0.4, ended=True, neighbors=ignored, bytes_sent=200, samples=128),
        AgentView(name="c"),
    ]
    frame = frame_of(3, views, LINE.edges)
    column = dict(zip(AGENT, frame.agents.T, strict=True))
    assert column["state"].tolist() == [State.LEARNING, State.ENDED, State.AWAY]
    assert column["samples"].tolist() == [64, 128, 0]
    assert column["refused"].tolist() == [4, 0, 0]  # marked is who sent them
    edges = dict(zip(EDGE, frame.edges.T, strict=True))
    np.testing.assert_allclose(edges["disagreement"], [0.3, 0.4], rtol=1e-6)  # c has not said anything
    assert edges["bytes"].tolist() == [400, 100]
    assert frame.totals["round"] == 3
    assert frame.totals["samples"] == 128
    assert frame.totals["disagreement"] == pytest.approx(0.9)  # c counts as the mean of the others
    assert frame.totals["objective"] == pytest.approx(1.5)
    assert frame.totals["order_mean"] == 7


def test_an_agent_that_vanishes_is_marked():
    frames = [frame_of(n, [view("a"), view("b", stale=n == 2), view("c")], LINE.edges) for n in (1, 2, 3)]
    assert [mark["text"] for mark in marks(LINE.names, frames)] == ["Agent b went away.", "Agent b came back."]


class Polled(MeshSource):
    """A mesh whose agents say what a test has them say."""

    def __init__(self, polls):
        Source.__init__(self, "mesh")
        self.shown = Shown(Recording(LINE))
        self._watcher = SimpleNamespace(poll=iter(polls).__next__)
        self._views, self._asked, self._portraits = (), {}, {}
        self._number = self._generation = 0

    def poll_all(self, times):
        for _ in range(times):
            self.poll()


def seen(*samples, **others):
    return [view(name, samples=count, **others) for name, count in zip("abc", samples, strict=True)]


def test_polls_of_a_mesh_that_does_not_learn_are_not_all_kept():
    away = [*seen(64, 64, 64)[:2], view("c", samples=64, stale=True)]
    source = Polled([seen(32, 32, 32), *[seen(64, 64, 64)] * 50, *[away] * 50, *[seen(96, 64, 64)] * 2])
    source.poll_all(103)
    kept = [(frame.round, frame.totals["samples"]) for frame in source.shown.recording.frames]
    assert kept == [(1, 32), (2, 64), (51, 64), (52, 64), (101, 64), (102, 96), (103, 96)]
    assert [mark["kind"] for mark in source.shown.marks] == ["away", "back"]


def test_agents_that_do_not_answer_are_away():
    nobody = [AgentView(name=name) for name in "abc"]
    gone = [view(name, samples=64, stale=True) for name in "abc"]
    source = Polled([nobody, seen(64, 64, 64), gone, gone])
    source.poll_all(1)
    assert not source.shown.recording.frames
    source.poll_all(3)
    assert source.news().status == "waiting"
    assert [frame.away.all() for frame in source.shown.recording.frames] == [False, True, True]


def test_a_new_run_begins_when_all_agents_begin_anew():
    source = Polled([seen(64, 128, 64), seen(96, 0, 96), seen(128, 32, 128), seen(0, 0, 0), seen(32, 32, 32)])
    source.poll_all(3)
    assert [frame.totals["samples"] for frame in source.shown.recording.frames] == [128, 128, 128]
    assert source.news().generation == 0
    source.poll_all(2)
    assert [frame.totals["samples"] for frame in source.shown.recording.frames] == [0, 32]
    assert source.news().generation == 1


def test_remarks_are_kept_apart_from_the_message():
    quiet = AgentView(name="a", status=view("a", ended=True).status, remarks=("stream has ended",))
    talks = AgentView(name="b", status=view("b", ended=True).status, remarks=("stream has ended", "2 invalid rows"))
    gone = AgentView(name="c", status=view("c", ended=True).status, stale=True, remarks=("does not answer",))
    source = Polled([[quiet, talks, gone], [quiet, talks, replace(gone, stale=False, remarks=quiet.remarks)]])
    source.poll_all(1)
    assert source.news().message == "c does not answer."
    assert source.news().remarks == ("b: stream has ended; 2 invalid rows",)
    source.poll_all(1)
    assert source.news().message == "All streams have ended. The agents continue to answer."


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
            assert list(source.describe()["names"]) == mesh.names
            assert np.flatnonzero(source.shown.subject.seen[0]).tolist() == [0, 3]
            rounds = source.shown.recording.frames[-1].round
            drawn = source.function(1, rounds)
            data = drawn["image"].partition("base64,")[2]
            with Image.open(io.BytesIO(base64.b64decode(data))) as image:
                assert image.size == (60, 60)
            mesh.kill("agent-1")
            until(source, lambda news: "agent-1 does not answer" in news.message)
            assert source.shown.recording.frames[-1].agents[1, AGENT.index("state")] == State.AWAY
            assert source.function(1, 10**6)["image"]  # the newest picture stays
            mesh.start("agent-1")
            until(source, lambda news: news.status == "running" and "not answer" not in news.message)
            assert source.shown.recording.frames[-1].agents[1, AGENT.index("state")] != State.AWAY
        finally:
            source.close()

"""What a page is fed with: recordings, down-sampling, sources, pictures, reports; without a browser."""

import asyncio
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from kernelmesh import (
    Agent,
    ArrayStream,
    Diffusion,
    Faults,
    Gaussian,
    Gradient,
    Graph,
    Komp,
    Landmarks,
    Logistic,
    Mixture,
    Penalty,
    Relay,
    Squared,
    simulate,
)
from kernelmesh.cli import app
from kernelmesh.dashboard.animation import animation
from kernelmesh.dashboard.documents import check_run, find_recording
from kernelmesh.dashboard.export import write_report
from kernelmesh.dashboard.live_source import LiveSource
from kernelmesh.dashboard.portraits import Canvas, portrait
from kernelmesh.dashboard.recorder import Recorder
from kernelmesh.dashboard.recording import AGENT, EDGE, FILE, TOTALS, Frame, Recording, State, Subject, marks
from kernelmesh.dashboard.security import COOKIE, Policy
from kernelmesh.dashboard.server import changes
from kernelmesh.dashboard.serving import Dashboard
from kernelmesh.dashboard.sources import FolderSource, News, Shown
from kernelmesh.dashboard.sources import Source as PageSource
from kernelmesh.dashboard.tables import frame_limit, frame_table, positions
from kernelmesh.dashboard.thinning import Thinned, evenly
from kernelmesh.errors import InvalidArgument, UnreadableFile
from kernelmesh.metrics import measure_agents, summarize
from kernelmesh.runtimes.engines import Processes
from kernelmesh.streams import StreamSlice

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "OPENBLAS_NUM_THREADS": "1"}
AGENT_2D = Agent(
    dimension=2, outputs=4, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), learner=Landmarks(), protocol=Relay()
)


def a_network(agent=AGENT_2D, *, agents=4, samples=320, targets=None, points=None, graph=None, stop=100, held=100):
    """A network whose agents see one class each, or all the same samples."""
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(classes=4, rng=rng)
    held = mixture.sample(held, rng=rng) if points is None else (points, targets)
    seen = [mixture.sample(6 * samples, rng=rng) for _ in range(agents)]
    own = [tuple(part[labels == i % 4][:samples] for part in (x, labels)) for i, (x, labels) in enumerate(seen)]
    own = own if points is None else [held] * agents
    streams = [StreamSlice(ArrayStream(*each), 0, stop) for each in own]
    graph = graph or Graph.line(agents)
    return SimpleNamespace(agent=agent, graph=graph, streams=streams, points=held[0], targets=held[1])


def learn(network, recorder, *, engine=None, sample=None, resume=0, rounds=None, each=lambda: None, **options):
    """Record every round of a network; returns the last."""
    recorder.begin(network, rounds=resume)
    where = {"graph": network.graph, "points": network.points, "targets": network.targets}
    for now in simulate(network.agent, network.graph, network.streams, engine=engine, **options):
        if now.number > resume:
            found = measure_agents(now, agent=network.agent, **where, sample=sample)
            recorder.add(now, summarize(now, found, agent=network.agent), found)
            each()
        if now.number == rounds:
            break
    recorder.end("complete")
    return now


def finish(folder):
    """The other files of a run."""
    (folder / "summary.json").write_text(json.dumps({"outcome": "complete", "remark": "", "accuracy": float("nan")}))
    (folder / "config.json").write_text(json.dumps({"agents": 4, "learner": "gradient", "seed": 3}))
    (folder / "report.json").write_text(json.dumps({"paragraphs": ["The Bayes limit is 92 %."], "printed": ["table"]}))
    (folder / "table.csv").write_text("protocol,error\nnone,0.5\n")
    for name in ("data", "figure"):
        Image.new("L", (4, 4)).save(folder / f"{name}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of four agents that see one class each, with its recording."""
    folder = tmp_path_factory.mktemp("run")
    learn(a_network(), Recorder(folder))
    finish(folder)
    return folder


def recorded(agent, points, targets, folder):
    """The recording of two agents that learn from the same samples, written to a folder."""
    recorder = Recorder(folder)
    learn(a_network(agent, agents=2, points=points, targets=targets), recorder)
    return recorder.recording


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


class TestThinning:
    @pytest.mark.parametrize("budget", [2, 5, 16, 100])
    def test_is_bounded_keeps_both_ends_and_is_even(self, budget):
        kept = Thinned(budget)
        for number in range(1000):
            kept.append(number)
            assert len(kept.items) <= max(budget, 2)
            assert (kept.items[0], kept.items[-1]) == (0, number)
        gaps = np.diff(kept.items[:-1])
        assert len(set(gaps)) <= 1  # but for the newest, which is there whatever its number
        assert len(kept.items) > budget / 2 - 1

    def test_later_items_can_be_dropped(self):
        kept = Thinned(10)
        for number in range(6):
            kept.append(number)
        kept.drop_after(lambda number: number <= 3)
        assert kept.items == (0, 1, 2, 3)

    def test_evenly(self):
        for count in (1, 2, 7, 1000):
            for limit in (2, 3, 50):
                chosen = evenly(count, limit)
                assert len(chosen) == len(set(chosen)) == min(count, limit)
                assert (chosen[0], chosen[-1]) == (0, count - 1)


def numbers(agents=3, edges=2, samples=0, rounds=1):
    return Frame(
        {**dict.fromkeys(TOTALS, 0.0), "round": rounds, "samples": samples},
        np.zeros((agents, len(AGENT)), dtype=np.float32),
        np.zeros((edges, len(EDGE)), dtype=np.float32),
    )


class TestRecording:
    def test_a_file_gives_back_what_was_recorded(self, folder, tmp_path):
        read = Recording.read(folder / FILE)
        read.write(tmp_path / FILE)
        again = Recording.read(tmp_path / FILE)
        assert again.subject.names == read.subject.names == ("0", "1", "2", "3")
        assert [np.flatnonzero(row).tolist() for row in read.subject.seen] == [[0], [1], [2], [3]]
        assert again.subject.kernel == read.subject.kernel
        np.testing.assert_array_equal(again.subject.seen, read.subject.seen)
        for one, other in zip(read.frames, again.frames, strict=True):
            assert one.totals == other.totals
            np.testing.assert_array_equal(one.agents, other.agents)
            np.testing.assert_array_equal(one.edges, other.edges)
        for one, other in zip(read.snapshots, again.snapshots, strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)
            np.testing.assert_array_equal(one.centers, other.centers)

    def test_numbers_and_functions_are_those_of_the_network(self, tmp_path):
        network, recorder = a_network(), Recorder(tmp_path)
        now = learn(network, recorder)
        recording = recorder.recording
        last, snapshot = recording.frames[-1], recording.snapshots[-1]
        found = measure_agents(now, agent=network.agent, graph=network.graph, points=network.points, targets=network.targets)
        measures = summarize(now, found, agent=network.agent)
        assert last.totals == {name: getattr(measures, name) for name in TOTALS}
        np.testing.assert_allclose(last.agents[:, AGENT.index("score")], found.scores, rtol=1e-6)
        np.testing.assert_allclose(last.edges[:, EDGE.index("disagreement")], found.disagreements, rtol=1e-6)
        assert last.edges[:, EDGE.index("bytes")].sum() == last.agents[:, AGENT.index("bytes")].sum() > 0
        for agent, f in enumerate(now.functions):
            np.testing.assert_allclose(
                snapshot.function(agent, AGENT_2D.kernel)(network.points), f(network.points), rtol=1e-3, atol=1e-3
            )

    def test_a_run_of_any_length_fits(self, monkeypatch):
        monkeypatch.setattr("kernelmesh.dashboard.recording._BUDGET", 1e5)
        recording = Recording(Subject(names=("a", "b", "c"), edges=np.array([[0, 1], [1, 2]])))
        for number in range(1, 20_000):
            recording.add(numbers(rounds=number))
        assert len(recording.frames) < 600
        assert recording.frames[-1].round == 19_999

    @pytest.mark.parametrize("damage", ["truncated", "empty", "other"])
    def test_a_damaged_file_is_refused(self, folder, tmp_path, damage):
        data = (folder / FILE).read_bytes()
        bad = {"truncated": data[: len(data) // 2], "empty": b"", "other": data[:-40] + bytes(40)}[damage]
        (tmp_path / FILE).write_bytes(bad)
        with pytest.raises(UnreadableFile, match=re.escape(FILE)):
            Recording.read(tmp_path / FILE)

    def test_a_resumed_run_has_one_recording(self, tmp_path):
        learn(a_network(), Recorder(tmp_path), rounds=6)
        half = [frame.round for frame in Recording.read(tmp_path / FILE).frames]
        learn(a_network(), Recorder(tmp_path), resume=4)
        whole = [frame.round for frame in Recording.read(tmp_path / FILE).frames]
        assert half == [1, 2, 3, 4, 5, 6] == whole[:6]
        assert whole == sorted(set(whole))
        assert whole[-1] > 6

    def test_agents_in_other_processes_leave_the_same_recording(self, folder, tmp_path):
        with Processes(2) as engine:
            learn(a_network(), Recorder(tmp_path / "all"), engine=engine)
            learn(a_network(), Recorder(tmp_path / "some"), engine=engine, sample=2)
        here, there, some = (Recording.read(place / FILE) for place in (folder, tmp_path / "all", tmp_path / "some"))
        assert len(here.frames) == len(there.frames) == len(some.frames) > 2
        for one, other in zip(here.frames, there.frames, strict=True):
            np.testing.assert_allclose(one.agents, other.agents, rtol=1e-5)  # how products round depends on threads
            np.testing.assert_allclose(one.edges, other.edges, rtol=1e-5, atol=1e-9)
        assert [shot.round for shot in there.snapshots] == [shot.round for shot in here.snapshots]
        # of a sample, there are the numbers of those that were measured, and no functions
        losses = np.array([frame.agents[:, AGENT.index("loss")] for frame in some.frames])
        assert np.isfinite(losses).sum(axis=1).tolist() == [2] * len(some.frames)
        assert not some.snapshots
        assert not FolderSource(tmp_path / "some").describe()["has_functions"]

    def test_the_newest_of_several_networks_is_shown_unless_one_is_named(self, copy, tmp_path):
        whole = tmp_path / "whole"
        for age, part in enumerate(("shared", "paper")):
            (whole / part).mkdir(parents=True)
            shutil.copy(copy / FILE, whole / part / FILE)
            os.utime(whole / part / FILE, (1e9 - age, 1e9 - age))
        assert find_recording(whole) == whole / "shared" / FILE
        assert FolderSource(whole / "paper").news().status == "running"
        shutil.copy(copy / "summary.json", whole / "summary.json")
        source, named = FolderSource(whole), FolderSource(whole / "paper")
        assert [each.describe()["part"] for each in (source, named, FolderSource(copy))] == ["shared", "paper", ""]
        assert "2 networks: paper, shared. The page shows shared." in source.news().message
        assert (named.news().status, named.news().message) == ("complete", "")

    def test_a_run_without_networks_removes_an_earlier_recording_and_shows_its_tables(self, copy):
        Recorder(copy).end("complete")
        assert not (copy / FILE).exists()
        source = FolderSource(copy)
        assert "recorded no agents" in source.news().message
        assert source.describe()["tables"] == {"table": [["protocol", "error"], ["none", "0.5"]]}
        assert source.describe()["names"] == ()
        assert source.frames()["count"] == 0

    def test_absent_agents_differ_from_ended_streams(self, tmp_path):
        network, recorder = (
            a_network(replace(AGENT_2D, learner=Gradient(step_size=1.0), protocol=Diffusion())),
            Recorder(tmp_path),
        )
        network.streams[0] = replace(network.streams[0], stop=4)
        learn(network, recorder, faults=Faults(absent={2: [(3, 8)]}))
        frames = recorder.recording.frames
        states = np.array([frame.agents[:, AGENT.index("state")] for frame in frames])
        assert states[2:8, 2].tolist() == [State.AWAY] * 6
        assert states[4:, 0].tolist() == [State.ENDED] * (len(frames) - 4)
        found = [mark["text"] for mark in marks(recorder.recording.subject.names, frames)]
        assert found[:2] == ["Agent 2 went away.", "Agent 2 came back."]

    def test_agents_that_wait_for_their_network_are_shown_as_learning(self, folder):
        recording = Recording.read(folder / FILE)
        samples, states = (
            np.array([frame.agents[:, AGENT.index(name)] for frame in recording.frames]) for name in ("samples", "state")
        )
        rests = (np.diff(samples, axis=0) == 0) & (samples[1:] < samples[-1])
        assert (states[1:][rests] == State.LEARNING).all()
        assert (states[-1] == State.ENDED).all()
        assert samples[-1].max() == recording.subject.total_samples

    def test_marks_where_the_penalty_doubles(self):
        frames = []
        for number, penalty in enumerate((0.01, 0.015, 0.02, 0.03, 0.08), start=1):
            frame = numbers(rounds=number, samples=100 * number)
            frames.append(Frame({**frame.totals, "penalty": penalty}, frame.agents, frame.edges))
        found = marks(("a", "b", "c"), frames)
        assert [(mark["samples"], mark["kind"]) for mark in found] == [(300, "penalty"), (500, "penalty")]


def test_the_server_sends_no_more_than_a_page_can_hold():
    subject = Subject(names=tuple(map(str, range(100))), edges=np.array(Graph.complete(30).edges))
    frames = [numbers(100, 435, samples=10 * n, rounds=n) for n in range(1, 3001)]
    table = frame_table(subject, frames)
    assert table["count"] == frame_limit(subject) < 400
    assert table["recorded"] == 3000
    assert len(json.dumps(table)) < 4e6
    assert [frame_table(subject, frames, after=rounds)["count"] for rounds in (2998, 3000)] == [2, 0]


@pytest.mark.parametrize("graph", [Graph.ring(5), Graph.star(9), Graph.line(2), Graph.complete(12)])
def test_agents_stand_apart_within_the_picture(graph):
    at = positions(len(graph), np.array(graph.edges))
    assert at.shape == (len(graph), 2)
    assert (at >= -1e-9).all()
    assert (at <= 1 + 1e-9).all()
    gaps = np.sqrt(((at[:, None] - at[None]) ** 2).sum(axis=2)) + np.eye(len(graph))
    assert gaps.min() > 0.05
    np.testing.assert_array_equal(at, positions(len(graph), np.array(graph.edges)))


class TestPortraits:
    def test_the_regions_are_the_classes_of_the_function(self, folder):
        recording = Recording.read(folder / FILE)
        canvas = Canvas(recording.subject)
        assert canvas.kind == "regions"
        snapshot = recording.snapshots[-1]
        f = snapshot.function(1, recording.subject.kernel)
        image = Image.open(io.BytesIO(canvas.image(f(canvas.grid))))
        classes = np.asarray(image) // 3
        np.testing.assert_array_equal(classes.ravel(), f(canvas.grid).argmax(axis=1))
        rounds = [snapshot.round for snapshot in recording.snapshots]
        assert [portrait(recording, canvas, 0, at)["round"] for at in (rounds[1], 0)] == [rounds[1], rounds[0]]
        drawn = portrait(recording, canvas, 1, snapshot.round)
        assert (drawn["agent"], drawn["round"], drawn["order"]) == (1, snapshot.round, f.order)
        np.testing.assert_allclose(np.array(drawn["points"])[:, :2].sum(), f.points.sum(), atol=1e-2)

    def test_one_dimension_is_drawn_as_a_curve(self, tmp_path):
        agent = Agent(
            dimension=1,
            outputs=1,
            kernel=Gaussian(),
            loss=Squared(),
            learner=Gradient(step_size=0.5, compression=Komp(budget=0.01)),
            protocol=Penalty(coupling=0.01),
        )
        points = np.linspace(-3, 3, 96)[:, None]
        recording = recorded(agent, points, np.sin(points), tmp_path)
        drawn = portrait(recording, Canvas(recording.subject), 0, 10**6)
        across, values = map(np.array, drawn["line"])
        f = recording.snapshots[-1].function(0, recording.subject.kernel)
        np.testing.assert_allclose(values, f(across[:, None])[:, 0], atol=1e-2)
        source = FolderSource(tmp_path)
        assert source.describe()["picture"] == "curve"
        assert not source.describe()["classifies"]

    def test_many_dimensions_are_projected_with_weights_and_mistakes(self, tmp_path):
        rng = np.random.default_rng(0)
        labels = rng.integers(3, size=400)
        points = rng.standard_normal((400, 6)) + 2.0 * np.eye(3, 6)[labels]
        learner = Gradient(step_size=1.0)
        agent = replace(AGENT_2D, dimension=6, outputs=3, learner=learner, protocol=Penalty(coupling=0.01))
        recording = recorded(agent, points, labels, tmp_path)
        drawn = portrait(recording, Canvas(recording.subject), 0, 10**6)
        assert len(drawn["weights"]) == 3
        f = recording.snapshots[-1].function(0, agent.kernel)
        wrong = np.flatnonzero(f(recording.subject.held_points).argmax(axis=1) != recording.subject.held_targets)
        assert {mistake["sample"] for mistake in drawn["mistakes"]} <= set(wrong.tolist())
        assert len(drawn["mistakes"]) == min(len(wrong), 8) > 0
        assert np.isfinite(np.array(drawn["points"])).all()

    def test_the_animation_is_a_gif_that_moves(self, folder):
        with Image.open(io.BytesIO(animation(Recording.read(folder / FILE)))) as gif:
            assert (gif.format, gif.is_animated) == ("GIF", True)
            first = np.asarray(gif.convert("RGB")).astype(int)
            gif.seek(gif.n_frames - 1)
            assert np.abs(np.asarray(gif.convert("RGB")).astype(int) - first).max() > 50


class TestSources:
    def test_a_folder_that_is_no_run_is_refused(self, tmp_path):
        with pytest.raises(InvalidArgument, match="has neither a recording nor a summary"):
            check_run("dashboard", tmp_path)
        with pytest.raises(InvalidArgument, match="is not a folder"):
            FolderSource(tmp_path / "nowhere")

    def test_a_truncated_file_is_reported_and_the_source_recovers(self, copy):
        good = (copy / FILE).read_bytes()
        source = FolderSource(copy)
        first = source.news()
        assert (first.status, first.message) == ("complete", "")
        (copy / FILE).write_bytes(good[: len(good) // 2])
        broken = source.news()
        assert broken.status == "unreadable"
        assert "must be a complete safetensors file" in broken.message
        assert source.frames()["count"]  # what was shown stays
        (copy / FILE).write_bytes(good)
        assert source.news().status == "complete"
        assert source.news().generation > broken.generation > first.generation
        (copy / "summary.json").write_text('{"outcome": "comp')
        assert "must be complete JSON" in source.news().message

    def test_a_live_run_grows_and_ends(self, tmp_path):
        recorder = Recorder(tmp_path)
        source = LiveSource(recorder, "gmm-logistic", tmp_path)
        assert source.news().status == "waiting"
        seen = []
        finish(tmp_path)
        learn(a_network(), recorder, each=lambda: seen.append((source.news().status, source.frames()["count"])))
        assert seen == [("running", count) for count in range(1, len(seen) + 1)]
        assert source.news().status == "complete"
        assert source.describe()["figures"] == ["data.png", "figure.png"]

    def test_events_send_each_frame_once(self):
        recording = Recording(Subject(names=("a", "b", "c"), edges=np.array([[0, 1], [1, 2]])))

        class OfRecording(PageSource):
            def news(self):
                return News(0, recording.version, "running")

        source = OfRecording("run")
        source.shown = Shown(recording)
        recording.add(numbers(rounds=1))

        async def listen():
            stream, heard = changes([source], lambda: False, tick=0.001), []
            async for line in stream:
                if line.startswith(b"data:"):
                    heard.append(json.loads(line[5:]))
                    if len(heard) == 4:
                        break
                    for _ in range(2):
                        frame = numbers(rounds=recording.frames[-1].round + 1)
                        frame.agents[1, AGENT.index("state")] = State.AWAY
                        recording.add(frame)
            return heard

        heard = asyncio.run(listen())
        assert [message["newest"] for message in heard] == [1, 3, 5, 7]
        assert [message["frames"]["count"] for message in heard[1:]] == [2, 2, 2]
        assert [[mark["text"] for mark in message["marks"]] for message in heard[1:]] == [["Agent b went away."]] * 3


class TestReport:
    def test_is_one_file_that_asks_for_nothing(self, copy):
        page = write_report([copy], copy / "report.html").read_text()
        assert "<!-- " not in page.replace(page[page.index('id="embedded"') : page.index("</script>")], "")[:3000]
        assert not re.search(r'<(?:script|img|link)[^>]+(?:src|href)="(?!data:)', page[: page.index("<script")])
        embedded = re.search(r'<script type="application/json" id="embedded">(.*?)</script>', page, re.DOTALL)[1]
        (found,) = json.loads(embedded)
        assert found["about"]["status"] == "complete"
        assert found["frames"]["count"] == len(Recording.read(copy / FILE).frames)
        assert {each["agent"] for each in found["functions"]} == {0, 1, 2, 3}
        assert sorted(found["images"]) == ["data.png", "figure.png"]
        assert "Bayes limit" in " ".join(found["about"]["paragraphs"])

    def test_text_of_a_run_is_escaped(self, copy):
        evil = "</script><script>alert(1)</script>"
        (copy / "report.json").write_text(json.dumps({"paragraphs": [evil], "printed": ["../../secret"]}))
        page = write_report([copy], copy / "report.html").read_text()
        assert "alert(1)</script>" not in page


def get(url, **headers):
    """Status, headers and body of an answer, without following redirects."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    opener = urllib.request.build_opener(Stay, urllib.request.ProxyHandler({}))
    method = headers.pop("method", "GET")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with opener.open(urllib.request.Request(url, headers=names, method=method), timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def raw(port, path, **headers):
    """The status of a request whose path is sent as it is."""
    names = {"Host": f"127.0.0.1:{port}", "Connection": "close", **headers}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in names.items()), "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return int(answer.split()[1]), answer


@pytest.fixture(scope="module")
def page(folder):
    with Dashboard([FolderSource(folder)], port=0) as page:
        yield page


class TestServer:
    def test_serves_the_page_and_its_numbers(self, page):
        status, headers, body = get(page.url)
        assert status == 200
        assert headers["content-type"].startswith("text/html")
        for name in re.findall(rb'(?:src|href)="(static/[^"]+)"', body):
            assert get(page.url + name.decode())[0] == 200
        (about,) = json.loads(get(f"{page.url}api/runs")[2])
        assert about["names"] == ["0", "1", "2", "3"]
        frames = json.loads(get(f"{page.url}api/runs/0/frames")[2])
        assert frames["count"] > 3
        drawn = json.loads(get(f"{page.url}api/runs/0/function?agent=2&round=4")[2])
        assert drawn["image"].startswith("data:image/png;base64,")
        assert get(f"{page.url}api/runs/0/figures/figure.png")[2].startswith(b"\x89PNG")
        assert get(f"{page.url}api/runs/0/animation.gif")[2].startswith(b"GIF89a")

    @pytest.mark.parametrize("run", ["7", "-1", "x", "9" * 5000, "%00"])
    def test_runs_that_are_not_there(self, page, run, capfd):
        assert get(f"{page.url}api/runs/{run}/frames")[0] == 404
        for query in ("agent=9&round=1", f"agent={run}&round=1", f"agent={run}", "agent=1&round=9999999999999"):
            assert get(f"{page.url}api/runs/0/function?{query}")[0] == 404
        assert capfd.readouterr().err == ""

    def test_only_other_machines_need_a_token(self):
        assert not any(Policy.choose(host, 80).token for host in ("127.0.0.1", "::1", "localhost"))
        assert all(len(Policy.choose(host, 80).token) >= 32 for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"))

    def test_a_web_socket_is_refused_quietly(self, page, capfd):
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        status, _, _ = get(f"{page.url}api/runs", **{**upgrade, **key, "Origin": "http://evil.example"})
        assert status == 403
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize(
        "path",
        [
            "/api/runs/0/figures/..%2Fconfig.json",
            "/api/runs/0/figures/../config.json",
            "/api/runs/0/figures/%2e%2e%2fsummary.json",
            "/api/runs/0/figures/config.json",
            "/api/runs/0/figures//etc/passwd",
            "/static/..%2f..%2frecording.py",
            "/static/../security.py",
            "/static/page.html",
            "/../../etc/passwd",
        ],
    )
    def test_paths_do_not_leave_what_is_listed(self, page, path):
        assert raw(page.policy.port, path)[0] == 404

    def test_links_out_of_the_folder_are_not_followed(self, copy, tmp_path):
        secret = tmp_path / "secret.png"
        secret.write_bytes(b"secret")
        (copy / "leak.png").symlink_to(secret)
        with Dashboard([FolderSource(copy)], port=0) as page:
            assert get(f"{page.url}api/runs/0/figures/figure.png")[0] == 200
            status, _, body = get(f"{page.url}api/runs/0/figures/leak.png")
        assert (status, b"secret" in body) == (404, False)

    def test_other_origins_are_refused(self, page):
        for path in ("", "api/runs", "api/events", "static/app.js"):
            status, headers, _ = get(page.url + path, Origin="http://evil.example")
            assert status == 403
            assert "access-control-allow-origin" not in headers
        assert get(f"{page.url}api/runs", Sec_Fetch_Site="cross-site")[0] == 403
        assert get(f"{page.url}api/runs", Origin=page.url.rstrip("/"), Sec_Fetch_Site="same-origin")[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert get(f"{page.url}api/runs", method=method)[0] == 405

    def test_another_host_name_is_refused(self, page):
        assert raw(page.policy.port, "/api/runs", Host="evil.example")[0] == 403
        assert raw(page.policy.port, "/api/runs", Host=f"evil.example:{page.policy.port}")[0] == 403
        assert raw(page.policy.port, "/api/runs", Host=f"localhost:{page.policy.port}")[0] == 200

    def test_every_answer_has_restrictive_headers(self, page):
        for path in ("", "api/runs", "nowhere"):
            headers = get(page.url + path)[1]
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"
            assert headers["cross-origin-resource-policy"] == "same-origin"

    def test_other_machines_need_the_token(self, folder):
        with Dashboard([FolderSource(folder)], host="0.0.0.0", port=0) as page:
            token = page.policy.token
            assert token
            assert f"?token={token}" in page.url
            base = f"http://127.0.0.1:{page.policy.port}/"
            for path in ("", "api/runs", "static/app.js", "api/events", f"?token={token}x", "?token="):
                assert get(base + path)[0] == 401
            status, headers, _ = get(f"{base}?token={token}")
            assert (status, headers["location"]) == (303, "/")
            cookie = headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert get(f"{base}api/runs", Cookie=cookie.split(";")[0])[0] == 200
            assert get(f"{base}api/runs", Cookie=f"{COOKIE}-{page.policy.port}=wrong")[0] == 401
            assert get(f"{base}api/runs", Cookie=f"{COOKIE}-{page.policy.port + 1}={token}")[0] == 401
            assert page.url == f"{base}?token={token}"
            assert page.policy.remote_url == f"http://{socket.gethostname()}:{page.policy.port}/?token={token}"
            assert get(f"{base}api/runs", Cookie=cookie.split(";")[0], Origin="http://evil.example")[0] == 403

    def test_a_port_in_use_is_named(self, page, folder):
        with pytest.raises(InvalidArgument, match=f"--port must be free, got {page.policy.port}, which is in use"):
            Dashboard([FolderSource(folder)], port=page.policy.port)


class TestCommands:
    def kernelmesh(self, *arguments):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "400"})
        return done.exit_code, done.output.replace("\n", "")

    def test_mistakes_are_reported_in_one_sentence_before_anything_is_written(self, tmp_path, copy):
        code, text = self.kernelmesh("dashboard", tmp_path / "nowhere")
        assert (code, "dashboard: DIR must be the folder of a run, got" in text) == (2, True)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            code, text = self.kernelmesh("dashboard", copy, "--port", taken.getsockname()[1])
        assert (code, "which is in use" in text) == (2, True)
        code, text = self.kernelmesh("report", copy, "--out", tmp_path / "nowhere" / "report.html")
        assert (code, "report: --out must be a file in an existing folder, got" in text) == (2, True)
        (copy / FILE).write_bytes(b"short")
        code, text = self.kernelmesh("report", copy)
        assert (code, "report: Cannot read the run" in text) == (1, True)
        assert not (copy / "report.html").exists()

    def test_the_page_is_there_until_ctrl_c(self, folder):
        command = [sys.executable, "-u", "-m", "kernelmesh", "dashboard", str(folder), "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        try:
            line = process.stdout.readline()
            assert get(re.search(r"http://[^ ]+", line)[0])[0] == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
            assert process.stdout.read() == "Stopped.\n"
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_source_may_be_replaced_while_it_is_described(copy):
    """Requests come from several threads while files change."""
    source, good, stop, problems = FolderSource(copy), (copy / FILE).read_bytes(), threading.Event(), []

    def describe():
        while not stop.is_set():
            try:
                about = source.describe()
                assert len(about["names"]) == len(about["positions"]) == 4
                assert source.frames()["count"]
            except Exception as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=describe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(12):
        (copy / FILE).write_bytes(good if n % 2 else good[:1000])
        source.news()
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []

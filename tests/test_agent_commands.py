"""The commands that run agents: what they say, how they end, and that nothing is left behind."""

import contextlib
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from kernelmesh import Hinge, registry
from kernelmesh.cli import app
from kernelmesh.deploy.client import AgentAddress, AgentClient
from kernelmesh.deploy.config import read
from kernelmesh.deploy.launch import launch
from kernelmesh.deploy.mesh_folder import MeshPlan, agents_of, create_mesh
from kernelmesh.deploy.processes import AgentProcess
from kernelmesh.deploy.watching import AgentView, MeshWatcher
from kernelmesh.errors import InvalidArgument, InvalidConfig, UnreachableAgent
from kernelmesh.messages import Values, decode, encode
from kernelmesh.runtimes.checkpoints import Checkpoint, CheckpointStore
from kernelmesh.runtimes.node.values import Traffic
from kernelmesh.runtimes.status import NeighborStatus, Status
from mesh import ENVIRONMENT, free_port

pytest.importorskip("zenoh")
pytestmark = pytest.mark.xdist_group("processes")


def invoke(*arguments):
    """In this process: code and everything that was printed."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def kernelmesh(*arguments):
    command = [sys.executable, "-m", "kernelmesh", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def running(*arguments, log):
    """A process that is gone afterwards."""
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kernelmesh", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=ENVIRONMENT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def change(file, *pairs):
    text = file.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


STDIN = [('kind = "file"', 'kind = "stdin"'), ('path = "data', '# path = "data'), ("follow = false", "#")]


def wait_until(what, *, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return found


def agents_running(folder) -> dict[int, str]:
    """The processes that run agents of a folder, by id: those whose command names it."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().decode(errors="replace").split("\0")
                if "agent" in command and any(part.startswith(f"{folder}/") for part in command):
                    found[int(entry)] = next(part for part in command if part.startswith(f"{folder}/"))
    return found


def checkpoints(folder) -> dict[str, int]:
    """How many samples each agent had learned from when it wrote its last checkpoint."""
    found = {}
    for file in sorted(folder.glob("*.toml")):
        config = read(file)
        store = CheckpointStore(config.checkpoint.folder, agent=config.agent)
        with contextlib.closing(store):
            kept, entries = store.restore(name=config.membership.name)
        assert not entries
        found[config.membership.name] = kept.state.samples
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """An agent that runs, and its folder."""
    folder = tmp_path_factory.mktemp("one") / "mesh"
    (file,) = create_mesh(folder, MeshPlan(agents=1, topology="line", samples=320, port=free_port(1)))
    with running("agent", file, log=folder / "log.txt") as process:
        wait_until(lambda: "is up on" in (folder / "log.txt").read_text())
        yield file
        assert process.poll() is None


@pytest.fixture
def three(tmp_path):
    """The files of three agents that do not run."""
    return create_mesh(tmp_path / "three", MeshPlan(agents=3, samples=50, port=free_port(3)))


@pytest.fixture
def alone(tmp_path):
    """The file of an agent without neighbors that does not run."""
    return create_mesh(tmp_path / "mesh", MeshPlan(agents=1, topology="line", samples=64, port=free_port(1)))[0]


class TestCheck:
    def test_a_valid_file(self, three, alone):
        code, text = invoke("agent", "--check", three[0])
        assert code == 0
        assert "OK. agent-0 listens on tcp/127.0.0.1:" in text
        assert "; neighbors: agent-1, agent-2; kernel Gaussian, loss Logistic, learner Landmarks, protocol Relay." in text
        assert not (three[0].parent / "state").exists()
        text = re.sub("(?m)^learner = .*$", 'learner = { kind = "SecondOrder" }', alone.read_text())
        alone.write_text(re.sub("(?m)^protocol = .*$", "", text))
        code, text = invoke("agent", "--check", alone)
        assert (code, text.endswith("loss Logistic, learner SecondOrder, protocol Local.\n")) == (0, True)

    @pytest.mark.parametrize(
        ("pairs", "words"),
        [
            ([("bandwidth = 0.6", "bandwidth = -1"), ("batch_size = 32", "batch_size = 0")], ["bandwidth", "batch_size"]),
            ([("every = 100", "every = =")], ["TOML"]),
        ],
        ids=lambda value: "" if isinstance(value[0], tuple) else value[0],
    )
    def test_mistakes_are_reported_with_their_lines(self, pairs, words, alone):
        lines = [next(n for n, text in enumerate(alone.read_text().splitlines(), 1) if old in text) for old, _ in pairs]
        change(alone, *pairs)
        for arguments in (("--check", alone), (alone,)):
            code, text = invoke("agent", *arguments)
            assert code == 2
            assert all(f"{alone}:{line}: " in text for line in lines)
            assert all(word in text for word in words)
        assert not (alone.parent / "state").exists()

    @pytest.mark.parametrize(
        ("content", "at", "words"),
        [
            ("x1,x9,label\n", "points", "stream.points must name columns of {data}, got 'x2'"),
            ("x1,x2,lable\n", "targets", "stream.targets must name columns of {data}, got 'label'; did you mean lable?"),
            ("x1,x2,label\n0.1,0.2,red\n", "[stream]", "stream must have columns and classes that match the data"),
            ('x1,"x2\n', "path", "the header of {data} must be a line of CSV"),
        ],
        ids=["points", "targets", "classes", "header"],
    )
    def test_data_that_do_not_fit_are_reported_with_line_and_key(self, content, at, words, alone):
        data = alone.parent / "data" / "agent-0.csv"
        line = next(n for n, text in enumerate(alone.read_text().splitlines(), 1) if text.startswith(at))
        data.write_text(content)
        code, text = invoke("agent", "--check", alone)
        assert code == 2
        assert f"{alone}:{line}: {words.format(data=data)}" in text
        if at in ("points", "targets"):
            with pytest.raises(InvalidConfig, match="must name columns"):
                launch(read(alone))

    @pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"name = "], ids=["none", "empty", "bytes", "half"])
    def test_no_such_file(self, content, tmp_path):
        file = tmp_path / "agent.toml"
        if content is not None:
            file.write_bytes(content)
        code, text = invoke("agent", "--check", file)
        assert code == 2
        assert "agent.toml" in text.replace("\n", "")


class TestAgent:
    def test_ports_folders_and_settings_can_prevent_a_start(self, alone):
        config = read(alone)
        port = int(config.membership.listen.rpartition(":")[2])
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            code, text = kernelmesh("agent", alone)
        assert (code, f"cannot listen on tcp/127.0.0.1:{port}" in text) == (2, True)
        store = CheckpointStore(config.checkpoint.folder, agent=config.agent)
        with contextlib.closing(store):
            code, text = invoke("agent", alone)
            assert (code, "folder must not be in use by another process" in text) == (2, True)
            state, _ = config.agent.step(config.agent.start(name="agent-0"), [[0.0, 0.0]], [1])
            assert store.save(Checkpoint(state=state, traffic=Traffic()))
        change(alone, ("bandwidth = 0.6", "bandwidth = 0.7"))
        code, text = invoke("agent", alone)
        assert (code, "another kernel" in text) == (2, True)

    def test_a_model_that_does_not_fit_into_memory(self, alone):
        change(alone, ("outputs = 5", "outputs = 400000000000"))
        code, text = kernelmesh("agent", alone)
        assert code == 1
        assert "does not fit into the memory" in text

    def test_a_stop_keeps_what_waited_on_standard_input(self, alone, tmp_path):
        change(alone, *STDIN)
        command = [sys.executable, "-m", "kernelmesh", "agent", str(alone)]
        with open(tmp_path / "log.txt", "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=ENVIRONMENT)
        try:
            process.stdin.write(b"x1,x2,label\n" + b"".join(b"%d,0,1\n" % i for i in range(7)))  # too few for a step
            process.stdin.flush()
            wait_until(lambda: "is up on" in (tmp_path / "log.txt").read_text())
            time.sleep(1.0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (tmp_path / "log.txt").read_text()
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
        config = read(alone)
        with contextlib.closing(CheckpointStore(config.checkpoint.folder, agent=config.agent)) as store:
            kept, _ = store.restore(name=config.membership.name)
        assert kept.state.samples == 0
        assert kept.pending.points[:, 0].tolist() == list(range(7))


class TestAsk:
    def test_points_and_files(self, one):
        code, text = invoke("ask", one, "--file", one.parent / "data" / "test.csv")
        assert code == 0
        assert len(text.splitlines()) == 2501
        code, text = invoke("ask", one, "--x", "0.1, 0.2", "--x", "1 2")
        assert code == 0, text
        rows = list(csv.DictReader(text.splitlines()))
        assert [(row["x1"], row["x2"]) for row in rows] == [("0.1", "0.2"), ("1.0", "2.0")]
        assert abs(sum(float(rows[0][f"p({i})"]) for i in range(5)) - 1.0) < 1e-4

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), "specify either --x"),
            (("--x", "a, b"), "--x must be numbers"),
            (("--x", "nan, 1"), "--x"),
            (("--x", "1, 2, 3"), "must be 2 numbers (x1, x2)"),
            (("--file", "/nowhere/points.csv"), "--file must be a readable CSV file"),
            (("--file", __file__), "x1, x2"),
        ],
        ids=lambda value: " ".join(value)[-25:] if isinstance(value, tuple) else "",
    )
    def test_invalid_questions_are_refused(self, arguments, words, one):
        code, text = invoke("ask", one, *arguments)
        assert code == 2
        assert words in text

    @pytest.mark.parametrize(
        ("changes", "header", "row"),
        [
            ([], "x1,x2,class,p(0),p(1),p(2),p(3),p(4)", "0.0,0.0,4,0.0"),
            ([('"Logistic"', '"Hinge"')], "x1,x2,class,score(0),score(1),score(2),score(3),score(4)", "0.0,0.0,4,0,1,2,3,4"),
            ([('"Logistic"', '"Absolute"')], "x1,x2,class,score(0),score(1),score(2),score(3),score(4)", "0.0,0.0,4,0,1"),
            ([('"Logistic"', '"Squared"'), ('"label"', '["a", "b"]')], "x1,x2,y1,y2,y3,y4,y5", "0.0,0.0,0,1,2,3,4"),
        ],
        ids=["probabilities", "scores", "scores of others", "numbers"],
    )
    def test_the_printed_columns_follow_from_the_loss(self, changes, header, row, tmp_path, monkeypatch):
        class Absolute(Hinge):  # a classification loss of somebody else's
            pass

        monkeypatch.setitem(registry._known, "loss", {**registry.kinds("loss"), "Absolute": Absolute})
        (file,) = create_mesh(tmp_path / "mesh", MeshPlan(agents=1, topology="line", samples=5))
        change(file, *changes)
        monkeypatch.setattr(AgentClient, "predict", lambda self, points: np.arange(5.0)[None])
        code, text = invoke("ask", file, "--x", "0, 0")
        assert code == 0, text
        assert text.splitlines()[0] == header
        assert text.splitlines()[1].startswith(row)

    def test_a_file_is_sent_in_requests_that_the_agent_reads(self, tmp_path, monkeypatch):
        (file,) = create_mesh(tmp_path / "mesh", MeshPlan(agents=1, topology="line", samples=5))
        change(file, ('log = "info"', 'log = "info"\nmax_bytes = 2048'))
        with AgentClient.from_file(file) as client:
            with pytest.raises(InvalidArgument, match="points must fit in a request of 2048 bytes, the max_bytes of agent-0"):
                client.predict(np.zeros((1000, 2)))
            assert not client.is_open
        sizes = []

        def answer(self, kind, payload):
            sizes.append(len(payload))
            return encode(Values(np.zeros((len(decode(payload).points), 5))))

        monkeypatch.setattr(AgentClient, "_request", answer)
        code, text = invoke("ask", file, "--file", tmp_path / "mesh" / "data" / "test.csv")
        assert code == 0, text
        assert len(text.splitlines()) == 2501
        assert max(sizes) <= 2048

    @pytest.mark.parametrize(("rows", "hinted"), [(10, False), (10_000, True)])
    def test_no_answer_to_a_large_request_hints_at_its_size(self, rows, hinted):
        class Silent:
            def get(self, key, **_):
                return []

            def close(self):
                pass

        with AgentClient(AgentAddress(name="north", mesh="demo", endpoint="tcp/127.0.0.1:7450")) as client:
            client._session = Silent()
            with pytest.raises(UnreachableAgent, match="north does not answer") as unanswered:
                client.predict(np.zeros((rows, 2)))
        assert ("bytes within its max_bytes?" in str(unanswered.value)) == hinted

    def test_an_agent_that_does_not_run(self, tmp_path):
        file = create_mesh(tmp_path / "mesh", MeshPlan(agents=3, samples=5, port=free_port(3)))[0]
        code, text = invoke("ask", file, "--x", "1, 2")
        assert code == 1
        assert "agent-0 cannot be reached" in text
        code, text = invoke("mesh", "status", file.parent, "--json")
        assert code == 1
        assert json.loads(text.splitlines()[0]) == {
            "agent": "agent-0",
            "answers": False,
            "remarks": ["does not answer"],
            "status": None,
        }


class TestMesh:
    def test_init_refuses(self, tmp_path):
        code, text = invoke("mesh", "init", tmp_path / "mesh", "--topology", "torus")
        assert (code, "topology must be one of ring" in text) == (2, True)
        assert not (tmp_path / "mesh").exists()

    def test_status(self, one):
        code, text = invoke("mesh", "status", one.parent)
        assert (code, "agent-0" in text) == (0, True)
        code, text = invoke("mesh", "status", one.parent, "--json")
        found = json.loads(text)
        assert (code, found["agent"], found["answers"]) == (0, "agent-0", True)
        assert found["status"]["samples"] > 0

    @pytest.mark.parametrize("command", ["up", "status"])
    def test_no_mesh(self, command, tmp_path):
        code, text = invoke("mesh", command, tmp_path)
        assert code == 2
        assert "must contain one TOML file per agent" in text

    def test_up_with_mistakes_starts_no_agent(self, three):
        data = three[1].parent / "data" / "agent-1.csv"
        data.write_text(data.read_text().replace("x1", "y1", 1))
        code, text = invoke("mesh", "up", data.parent.parent)
        assert code == 2, text
        assert f"{three[1]}:" in text
        assert "points must name columns of" in text.replace("\n", " ")
        change(three[2], ("bandwidth = 0.6", "bandwidth = -1"))
        code, text = invoke("mesh", "up", data.parent.parent)
        assert (code, "bandwidth" in text) == (2, True)
        assert not (three[1].parent / "logs").exists()

    def test_everything_that_does_not_fit_together_is_reported_at_once_with_its_line(self, three):
        _, file, other = three
        change(file, ("bandwidth = 0.6", "bandwidth = 0.7"), ('agent-0 = "', '# agent-0 = "'), ("number = 1", "number = 0"))
        change(other, ('mesh = "demo"', 'mesh = "other"'), ('mode = "free"', 'mode = "lock-step"'))
        code, text = invoke("mesh", "up", file.parent)
        assert code == 2
        for wrong in (
            "model.kernel must be the same for all agents (agent-0 has",
            "neighbors must also name agent-0, which names agent-1, got agent-2",
            "number must be different for all agents (agent-0 has it as well), got 0",
            f"{other}:5: mesh must be the same for all agents (agent-0 has 'demo'), got 'other'",
            "mode must be the same for all agents",
        ):
            assert wrong in text.replace("\n", " "), wrong

    def test_a_mesh_that_is_running_is_not_started_twice(self, one):
        code, text = invoke("mesh", "up", one.parent)
        assert code == 2, text
        assert "checkpoint.folder must not be in use" in text.replace("\n", " ")

    def test_up_until_done(self, tmp_path):
        folder = tmp_path / "mesh"
        create_mesh(folder, MeshPlan(agents=3, samples=640, port=free_port(3)))
        code, text = kernelmesh("mesh", "up", folder, "--until-done")
        assert code == 0, text
        assert checkpoints(folder) == dict.fromkeys(("agent-0", "agent-1", "agent-2"), 640)
        assert not agents_running(folder)
        # without a terminal, every change of state has a line of its own
        assert all(f"agent-{i}: stream has ended" in text for i in range(3))  # earlier states may fall between two polls

    def test_ctrl_c_stops_all_with_their_checkpoints(self, tmp_path):
        folder = tmp_path / "mesh"
        create_mesh(folder, MeshPlan(agents=3, samples=100_000, rate=500.0, port=free_port(3)))
        with running("mesh", "up", folder, log=tmp_path / "log.txt") as up:
            all_up(folder)
            up.send_signal(signal.SIGINT)
            assert up.wait(60) == 0, (tmp_path / "log.txt").read_text()
        assert not agents_running(folder)
        assert all(samples > 0 for samples in checkpoints(folder).values())

    def test_agents_end_with_the_process_that_started_them(self, tmp_path):
        folder = tmp_path / "mesh"
        create_mesh(folder, MeshPlan(agents=3, samples=100_000, rate=500.0, port=free_port(3)))
        with running("mesh", "up", folder, log=tmp_path / "log.txt") as up:
            all_up(folder)
            up.kill()
            up.wait()
            try:
                wait_until(lambda: not agents_running(folder), seconds=5.0)
            finally:
                for process in agents_running(folder):
                    os.kill(process, signal.SIGKILL)
        assert all(samples > 0 for samples in checkpoints(folder).values())


STATUS = Status(
    name="agent-0", mode="free", samples=64, steps=2, steps_here=2, seconds=1.5, order=7, bytes_sent=100, floats_sent=10
)


class Answering(AgentClient):
    """A client whose answers are given: a status, or an error."""

    def __init__(self, *answers):
        super().__init__(AgentAddress(name="agent-0", mesh="demo", endpoint="tcp/127.0.0.1:7450"))
        self.answers = list(answers)

    def status(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestWatching:
    def test_an_agent_that_falls_silent_keeps_its_last_status(self):
        neighbor = NeighborStatus(alive=True, ended=False, ignored=True, refused=1, excluded="its sums are not positive")
        status = msgspec.structs.replace(
            STATUS, ended=True, bad_rows=3, trouble="disk full", neighbors={"b": neighbor}, waiting_for=("b",)
        )
        with MeshWatcher([Answering(UnreachableAgent("gone"), status, UnreachableAgent("gone"))]) as watcher:
            (view,) = watcher.poll()
            assert view == AgentView(name="agent-0", remarks=("does not answer",))
            (view,) = watcher.poll()
            assert (view.answers, view.stream_ended, view.state) == (True, True, "stream has ended")
            about = ("stream has ended", "waits for b", "ignores b", "excludes b", "refused: 1 from b")
            about += ("3 invalid rows", "no checkpoint: disk full")
            assert view == AgentView(name="agent-0", status=status, remarks=about)
            (view,) = watcher.poll()
            assert (view.status, view.stale, view.answers) == (status, True, False)
            assert view.remarks == ("does not answer", *(remark for remark in about if remark != "waits for b"))

    def test_a_process_reports_its_state(self, tmp_path):
        process = AgentProcess(tmp_path / "a.toml", tmp_path / "a.log", Answering(UnreachableAgent("not yet"), STATUS))
        with MeshWatcher([process]) as watcher:
            assert watcher.poll()[0].remarks == ("starting",)
            assert watcher.poll()[0].remarks == ()
            for code, remark in ((0, "has left"), (3, f"failed (exit code 3): see {tmp_path / 'a.log'}")):
                process.process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
                process.process.wait()
                assert process.code == code
                (view,) = watcher.poll()
                assert (view.stale, view.remarks) == (True, (remark,))


def all_up(folder):
    """Wait until three agents have learned something."""
    wait_until(lambda: len(list((folder / "logs").glob("*.log"))) == 3)
    for file in agents_of(folder):
        with AgentClient.from_file(file) as client:

            def samples(client=client):
                with contextlib.suppress(UnreachableAgent):
                    return client.status().samples
                return 0

            wait_until(samples)
    assert len(agents_running(folder)) == 3

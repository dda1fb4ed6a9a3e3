"""Agents as separate processes: what a real network must not change, and what it must survive. The longer ones are `slow`."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from kernelmesh import Penalty, simulate, storage
from kernelmesh.deploy.certificates import create_authority, issue
from kernelmesh.deploy.config import read
from kernelmesh.messages import Points, encode
from kernelmesh.runtimes.frames import Frame, Header, Prefix, encode_frame
from kernelmesh.streams import ArrayStream
from mesh import ENVIRONMENT, Mesh, samples_of
from test_messages import BAD
from test_node import bad_answers, make
from turns import digest
from virtual import question, rubbish

pytest.importorskip("zenoh")

# one mesh at a time: agents that share two cores with more than their neighbors are another test
pytestmark = pytest.mark.xdist_group("processes")


def simulated(mesh: Mesh):
    """The rounds of the same agents with the same streams in one process."""
    agent = read(mesh.files[0]).agent
    streams = [ArrayStream(*samples_of(mesh.folder / "data" / f"{name}.csv")) for name in mesh.names]
    importlib.import_module("scipy.linalg")  # whose BLAS is limited only if it has been loaded
    with threadpool_limits(1):  # as the processes have it: LAPACK rounds differently with more
        yield from simulate(agent, mesh.graph(), streams)


def run_turns(mesh: Mesh) -> dict[str, list[list[str]]]:
    """Every agent of the mesh in a process of its own; what each step led to, by agent."""
    script = Path(__file__).parent / "turns.py"
    for name in mesh.names:
        command = [sys.executable, str(script), str(mesh.folder / f"{name}.toml"), str(mesh.folder / f"{name}.txt")]
        with open(mesh.folder / f"{name}.log", "ab") as log:
            mesh.processes[name] = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
    for name in mesh.names:
        assert mesh.processes[name].wait(120) == 0, mesh.log(name)[-3000:]
    return {name: [line.split() for line in (mesh.folder / f"{name}.txt").read_text().splitlines()] for name in mesh.names}


LEAVE = {'at_end = "stay"': 'at_end = "leave"'}


@pytest.mark.parametrize("protocol", ["penalty", "relay"])
def test_in_lock_step_rounds_are_those_of_the_simulation(protocol, tmp_path):
    options = {"mode": "lock-step", "partition": "identical", "change": LEAVE}
    with Mesh(tmp_path / "mesh", samples=32 * 40, protocol=protocol, **options) as mesh:
        told, compared = {name: iter(lines) for name, lines in run_turns(mesh).items()}, 0
        for now in simulated(mesh):
            for i, name in enumerate(mesh.names):
                if now.infos[i] is None:  # a round without samples
                    continue
                compared += 1
                number, function, loss, samples = next(told[name])
                assert (int(number), int(samples)) == (now.number, now.samples[i])
                assert function == digest(now.functions[i]), f"{name} in round {now.number}"
                assert loss == now.infos[i].loss.hex()
        assert compared == 5 * 40
        for i, name in enumerate(mesh.names):
            assert list(told[name]) == [["sent", str(now.bytes_sent[i]), str(now.floats_sent[i])]]


def test_what_a_sensor_publishes_is_learned_from(tmp_path):
    from kernelmesh.runtimes.zenoh import open_client

    row = json.dumps({"x1": 1.0, "x2": 2.0, "label": 3}) + "\n"
    with Mesh(tmp_path / "mesh", agents=1, topology="line", samples=32, change=LEAVE) as mesh:
        text = re.sub(r"(?m)^(path|format|follow) = .*\n", "", mesh.files[0].read_text())
        mesh.files[0].write_text(text.replace('kind = "file"', 'kind = "zenoh"\nkey = "sensors/*"'))
        mesh.start()
        mesh.wait(lambda all_: True, seconds=90)
        session = open_client(mesh.clients["agent-0"].address.endpoint, None)
        for _ in range(8):
            session.put("sensors/north", 10 * row)
        mesh.wait_for_samples(64, seconds=30)
        session.close()
        mesh.stop()
        assert mesh.states()["agent-0"].samples == 64
        assert len(newest(mesh, "agent-0")[0]["pending.points"]) == 16  # the rows that wait are kept, too


def test_an_agent_that_is_killed_twice(tmp_path):
    rate = 600.0
    with Mesh(tmp_path / "mesh", samples=60_000, rate=rate, change={"every = 100": "every = 40"}) as mesh:
        mesh.start()
        mesh.wait_for_samples(4000, seconds=90)
        mesh.wait(lambda all_: all(s.members == 5 for s in all_.values()))
        for _ in range(2):
            before = {name: mesh.status(name) for name in mesh.names if name != "agent-2"}
            mesh.kill("agent-2")
            time.sleep(3.0)
            for name, then in before.items():  # the others never stopped, and have lost nothing
                now = mesh.status(name)
                assert now.samples > then.samples + 0.5 * 3.0 * rate, name
                assert now.others >= then.others, name
            mesh.start("agent-2")
            mesh.wait(lambda all_: all(sum(n.alive for n in s.neighbors.values()) == 2 for s in all_.values()))
            mesh.wait(lambda all_: all(s.members == 5 for s in all_.values()))
        mesh.stop()
        states = mesh.states()
        for name, state in states.items():  # every sample once: the position in the file is the number learned from
            assert newest(mesh, name)[1]["position"]["row"] == state.samples, name
        assert min(mesh.accuracies(states).values()) > 0.85


def newest(mesh: Mesh, name: str):
    """The arrays and the settings in the newest checkpoint of an agent."""
    return storage.read(max((mesh.folder / "state" / name).glob("checkpoint-*.safetensors")), kind="agent")


def resident(pid: int) -> float:
    """Resident memory in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def hostile_messages(count: int, rng: random.Random):
    """Garbage of every kind, some of it behind a frame that is valid."""
    good = [encode(Points(np.ones((32, columns)))) for columns in (2, 5)]
    bad = [data for _, data in bad_answers(make(Penalty(coupling=0.05)))]
    payloads = [data[:4096] for data in (*good, *bad, *BAD.values(), rng.randbytes(4096))]
    for number in range(count):
        payload, token = payloads[number % len(payloads)], rng.getrandbits(60)
        asked = question(Header(step=1, share=0.5), payload, token=token)
        told = encode_frame(Frame(Prefix(token, True, 1), Header(step=1, share=0.5), payload))
        yield rng.choice([asked, asked, told, payload, rng.randbytes(17) + payload, rubbish(rng, asked)])


def test_ten_thousand_hostile_messages(tmp_path):
    import zenoh

    from kernelmesh.runtimes.zenoh import open_client

    options = {"partition": "identical", "rate": 500.0, "samples": 100_000}
    with Mesh(tmp_path / "mesh", agents=3, **options) as mesh:
        mesh.start()
        mesh.wait_for_samples(1000, seconds=90)
        address = mesh.clients["agent-0"].address
        before = mesh.status("agent-0")
        memory = [resident(mesh.processes["agent-0"].pid)]
        session = open_client(address.endpoint, None)
        keys = itertools.cycle(["from/agent-1", "from/nobody", "predict", "from/agent-2"])
        rng, slowest = random.Random(0), 0.0
        for number, payload in enumerate(hostile_messages(10_000, rng)):
            key = f"kernelmesh/demo/agent-0/{next(keys)}"
            if key.endswith("predict"):
                session.get(key, lambda _: None, payload=payload, timeout=1.0)
            else:
                session.put(key, payload, congestion_control=zenoh.CongestionControl.BLOCK)
            if number % 1000 == 999:
                began = time.monotonic()
                assert mesh.clients["agent-0"].predict(np.zeros((1, 2))).shape == (1, 5)
                slowest = max(slowest, time.monotonic() - began)
                memory.append(resident(mesh.processes["agent-0"].pid))
        session.close()
        time.sleep(1.0)
        after = mesh.status("agent-0")
        assert max(memory) - memory[0] < 50.0
        assert after.refused > before.refused + 100
        assert slowest < 3.0
        assert after.samples > before.samples
        neighbors = after.neighbors
        assert all(known.alive and not known.ignored for known in neighbors.values()), neighbors
        for name in ("agent-1", "agent-2"):  # honest neighbors are still answered in time
            assert mesh.status(name).neighbors["agent-0"].alive
        log = mesh.log("agent-0")
        assert "Traceback" not in log
        assert 0 < log.count("refused a message") < 100
        mesh.stop()
        states = mesh.states()
        assert all(np.isfinite(state.function.weights).all() for state in states.values())
        assert min(mesh.accuracies(states).values()) > 0.6


@pytest.mark.slow
def test_memory_stays_flat(tmp_path):
    """Ten minutes at full speed (KERNELMESH_MINUTES changes that), after one in which the dictionary settles."""
    minutes = float(os.environ.get("KERNELMESH_MINUTES", "10"))
    with Mesh(tmp_path / "mesh", agents=3, samples=int(600_000 * (minutes + 1)), partition="identical") as mesh:
        mesh.start()
        mesh.wait_for_samples(100_000, seconds=300)
        time.sleep(30.0)
        record: dict[str, list[float]] = {name: [] for name in mesh.names}
        end = time.monotonic() + 60.0 * minutes
        while time.monotonic() < end:
            for name in mesh.names:
                record[name].append(resident(mesh.processes[name].pid))
            time.sleep(2.0)
        for name, memory in record.items():
            assert max(memory) < 1.05 * memory[0], name
        mesh.stop()


def test_with_tls_only_neighbors_and_clients_are_answered(tmp_path):
    from kernelmesh.runtimes.membership import Tls
    from kernelmesh.runtimes.zenoh import open_client

    with Mesh(tmp_path / "mesh", agents=3, topology="line", tls=True, samples=100_000, rate=500.0) as mesh:
        tls, other = mesh.folder / "tls", tmp_path / "other"
        issue(tls, "mallory")  # valid, but nobody's neighbor or client
        create_authority(other)
        issue(other, "operator")  # the right name, signed by somebody else
        mesh.start()
        mesh.wait_for_samples(1000, seconds=90)
        assert mesh.clients["agent-0"].predict(np.zeros((2, 2))).shape == (2, 5)
        endpoint, root = mesh.clients["agent-0"].address.endpoint, "kernelmesh/demo/agent-0"
        before = mesh.status("agent-0")

        def opened(name: str, folder: Path = tls):
            files = Tls(authority=tls / "authority.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
            return contextlib.closing(open_client(endpoint, files))

        def answers(key: str, name: str, folder: Path = tls) -> bool:
            """Whether there is an answer; what is said to be from a neighbor is no frame, so it is refused and counted."""
            refused = mesh.status("agent-0").refused
            try:
                with opened(name, folder) as session:
                    if not key.startswith("from/"):
                        return answered(
                            session, f"{root}/{key}", encode(Points(np.zeros((1, 2)))) if key == "predict" else b""
                        )
                    for _ in range(20):  # until both ends know of each other
                        session.put(f"{root}/{key}", b"not a frame")
                        time.sleep(0.05)
            except ConnectionError:
                return False
            return mesh.status("agent-0").refused > refused

        assert answers("status", "operator")  # so that a refusal below means something
        for key in ("status", "predict", "from/agent-1"):
            assert not answers(key, "mallory"), key
            assert not answers(key, "operator", other), key
            assert not answers(key, "authority", other), key  # signed by itself
        assert not answers("from/agent-1", "operator")  # a client is not a neighbor
        assert not answers("from/agent-1", "agent-2")  # and nobody is another
        assert not answers("from/agent-2", "agent-2")  # agent-2 is no neighbor of agent-0
        assert answers("from/agent-1", "agent-1")
        for name in ("operator", "agent-2"):  # what neighbors say is nobody else's business
            with opened(name) as session:
                heard: list[object] = []
                listener = session.declare_subscriber("kernelmesh/**", heard.append)
                time.sleep(1.0)
                listener.undeclare()
            assert not heard, name
        assert not answers_without_certificate(endpoint, tls, root)
        after = mesh.status("agent-0")
        assert after.samples > before.samples
        assert after.neighbors["agent-1"].alive
        assert not any("PRIVATE KEY" in mesh.log(name) for name in mesh.names)
        mesh.stop()


def answered(session, key: str, payload: bytes = b"") -> bool:
    return any(reply.ok is not None for reply in session.get(key, payload=payload, timeout=1.0))


def answers_without_certificate(endpoint: str, tls: Path, root: str) -> bool:
    import zenoh

    config = zenoh.Config()
    for key, value in {
        "mode": "client",
        "connect/endpoints": [endpoint],
        "connect/timeout_ms": 1500,
        "scouting/multicast/enabled": False,
        "transport/link/tls/root_ca_certificate": str(tls / "authority.pem"),
    }.items():
        config.insert_json5(key, json.dumps(value))
    try:
        with contextlib.closing(zenoh.open(config)) as session:
            return answered(session, f"{root}/status")
    except zenoh.ZError:
        return False

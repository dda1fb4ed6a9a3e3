import csv
import datetime
import ipaddress
import stat
from collections import Counter

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from kernelmesh import Landmarks, Relay
from kernelmesh.deploy.certificates import create_authority, issue, tls_problems
from kernelmesh.deploy.config import read
from kernelmesh.deploy.mesh_folder import TOPOLOGIES, MeshPlan, agents_of, create_mesh, protocols
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.simulation import stability_warning


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def graph_of(configs):
    names = [made.membership.name for made in configs]
    assert names == sorted(names)
    return Graph(tuple(names), tuple(tuple(names.index(n) for n in made.membership.neighbors) for made in configs))


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_new_mesh_folder(tmp_path):
    folder = tmp_path / "new" / "mesh"
    files = create_mesh(folder, MeshPlan(samples=50))
    assert files == agents_of(folder) == [folder / f"agent-{i}.toml" for i in range(5)]
    data = {f"data/agent-{i}.csv" for i in range(5)}
    assert set(contents(folder)) == data | {"data/test.csv", "README.md"} | {f"agent-{i}.toml" for i in range(5)}
    configs = [read(file) for file in files]
    assert graph_of(configs).neighbors == Graph.ring(5).neighbors
    addresses = {made.membership.name: made.membership.listen for made in configs}
    assert list(addresses.values()) == [f"tcp/127.0.0.1:{7450 + i}" for i in range(5)]
    for made in configs:
        assert all(addresses[name] == address for name, address in made.membership.neighbors.items())
        assert made.agent == configs[0].agent
        assert made.agent.protocol == Relay()
        assert made.agent.learner == Landmarks()
    assert [made.membership.number for made in configs] == list(range(5))
    readme = (folder / "README.md").read_text()
    for command in ("mesh up .", "mesh status .", "ask agent-0.toml", "agent --check agent-0.toml", "agent agent-0.toml"):
        assert f"kernelmesh {command}" in readme


def test_each_agent_sees_one_class_or_all(tmp_path):
    create_mesh(tmp_path / "one", MeshPlan(agents=7, samples=60))
    for i in range(7):
        assert {row["label"] for row in rows(tmp_path / f"one/data/agent-{i}.csv")} == {str(i % 5)}
        assert len(rows(tmp_path / f"one/data/agent-{i}.csv")) == 60
    create_mesh(tmp_path / "all", MeshPlan(samples=60, partition="identical"))
    for i in range(5):
        assert len({row["label"] for row in rows(tmp_path / f"all/data/agent-{i}.csv")}) == 5
    held = rows(tmp_path / "one/data/test.csv")
    assert min(Counter(row["label"] for row in held).values()) > 400
    assert (tmp_path / "one/data/test.csv").read_bytes() == (tmp_path / "all/data/test.csv").read_bytes()


def test_a_seed_repeats_byte_for_byte(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        create_mesh(tmp_path / name, MeshPlan(agents=6, topology="random", samples=20, seed=seed))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["data/agent-0.csv"] != contents(tmp_path / "c")["data/agent-0.csv"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_topologies(tmp_path, topology):
    files = create_mesh(tmp_path / "mesh", MeshPlan(agents=12, topology=topology, samples=1))
    assert [file.stem for file in files] == [f"agent-{i:02}" for i in range(12)]
    graph = graph_of([read(file) for file in files])
    if topology != "random":
        assert graph.neighbors == getattr(Graph, topology)(12).neighbors


@pytest.mark.parametrize("protocol", protocols())
def test_protocols_are_stable_where_they_have_a_bound(tmp_path, protocol):
    configs = [
        read(file) for file in create_mesh(tmp_path / "mesh", MeshPlan(topology="complete", samples=32, protocol=protocol))
    ]
    agent, graph = configs[0].agent, graph_of(configs)
    assert type(agent.protocol).__name__.lower() == protocol.replace("-", "")
    points = [[[float(row["x1"]), float(row["x2"])] for row in rows(made.stream.kind.path)] for made in configs]
    batches = [agent.check(some, [0] * len(some))[0] for some in points]
    assert stability_warning(agent, batches, graph, first=0, last=100_000) is None


def test_the_penalty_is_capped_at_half_of_the_stable_limit(tmp_path):
    for protocol in ("penalty", "hilbert"):
        (file, *_) = create_mesh(tmp_path / protocol, MeshPlan(topology="complete", samples=1, protocol=protocol))
        assert read(file).agent.protocol.coupling.ceiling == 0.067  # 1 / (3 · 5)


def test_options_reach_the_files(tmp_path):
    made = read(
        create_mesh(tmp_path / "a", MeshPlan(agents=1, topology="line", mode="lock-step", rate=50, port=9, samples=1))[0]
    )
    assert (made.membership.lock_step, made.stream.rate, made.membership.listen) == (True, 50.0, "tcp/127.0.0.1:9")
    assert dict(made.membership.neighbors) == {}
    made = read(create_mesh(tmp_path / "b", MeshPlan(agents=2, topology="star", host="::1", samples=1))[0])
    assert made.membership.listen == "tcp/[::1]:7450"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agents": 2}, "agents must be >= 3 for a ring, got 2; a line takes any number"),
        ({"topology": "tree"}, "topology must be one of ring, line, star, complete, random, got 'tree'"),
        ({"protocol": "local"}, "protocol must be one of diffusion, hilbert"),
        ({"port": 65533}, "port must leave room for 5 agents below 65536, got 65533"),
        ({"tls": "yes"}, "tls must be true or false"),
        ({"host": "10.0.0.1"}, r"host must be a host that agents can listen on.*got '10.0.0.1'; a real network needs TLS"),
    ],
)
def test_refused_options_write_nothing(tmp_path, options, words):
    with pytest.raises(ValueError, match=f"MeshPlan: {words}"):
        create_mesh(tmp_path / "mesh", MeshPlan(**options))
    assert not (tmp_path / "mesh").exists()


def test_refused_folders(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for name in ("file", "full"):
        with pytest.raises(ValueError, match=r"create_mesh: folder must be new or empty, got .*; choose another folder"):
            create_mesh(tmp_path / name, MeshPlan(samples=1))
    (tmp_path / "empty").mkdir()
    for name, why in (("empty", "has none"), ("gone", "is not a folder"), ("file", "is not a folder")):
        with pytest.raises(ValueError, match=f"mesh: FOLDER must contain one TOML file per agent, got .*{why}"):
            agents_of(tmp_path / name)
    assert len(create_mesh(tmp_path / "empty", MeshPlan(samples=1))) == 5


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secured") / "mesh"
    create_mesh(folder, MeshPlan(tls=True, samples=1, host="192.168.1.7"))
    return folder


def test_certificates_verify_and_name_the_agent(secured):
    authority = x509.load_pem_x509_certificate((secured / "tls/authority.pem").read_bytes())
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value.ca
    assert authority.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert authority.not_valid_after_utc - authority.not_valid_before_utc > datetime.timedelta(days=3650)
    for name in (*(f"agent-{i}" for i in range(5)), "operator"):
        leaf = x509.load_pem_x509_certificate((secured / f"tls/{name}.pem").read_bytes())
        leaf.verify_directly_issued_by(authority)
        assert isinstance(leaf.public_key().curve, ec.SECP256R1)
        assert [entry.value for entry in leaf.subject] == [name]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [name, "localhost"]
        addresses = ["127.0.0.1", "192.168.1.7"]
        assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(host) for host in addresses]
        purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert {purpose._name for purpose in purposes} == {"serverAuth", "clientAuth"}
        now = datetime.datetime.now(datetime.UTC)
        assert leaf.not_valid_before_utc < now < leaf.not_valid_after_utc <= now + datetime.timedelta(days=825)
        files = {"certificate": secured / f"tls/{name}.pem", "key": secured / f"tls/{name}.key"}
        assert list(tls_problems(authority=secured / "tls/authority.pem", **files, name=name)) == []


def test_keys_are_for_their_owner_alone(secured):
    keys = sorted((secured / "tls").glob("*.key"))
    assert len(keys) == 7
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_keys_are_never_overwritten(tmp_path):
    create_authority(tmp_path)
    issue(tmp_path, "a")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"create_authority: the file must not exist yet, got .*authority\.key"):
        create_authority(tmp_path)
    with pytest.raises(ValueError, match=r"issue: the file must not exist yet, got .*a\.key.*remove a\.pem and a\.key"):
        issue(tmp_path, "a")
    (tmp_path / "a.key").unlink()
    with pytest.raises(ValueError, match=r"issue: the file must not exist yet, got .*a\.pem"):
        issue(tmp_path, "a")
    assert contents(tmp_path) == {name: data for name, data in before.items() if name != "a.key"}


@pytest.mark.parametrize("name", ["", "../a", "authority", "a b", 3])
def test_refused_names(tmp_path, name):
    create_authority(tmp_path)
    with pytest.raises(ValueError, match="issue: name must be 1 to 64 letters"):
        issue(tmp_path, name)


def test_refused_hosts_and_a_missing_authority(tmp_path):
    with pytest.raises(ValueError, match=r"issue: folder must contain authority\.pem.*; create them with create_authority"):
        issue(tmp_path, "a")
    create_authority(tmp_path)
    for host in ("a b", "", 7):
        with pytest.raises(ValueError, match="issue: hosts must be host names or IP addresses"):
            issue(tmp_path, "a", hosts=(host,))

"""A mesh laid out in a folder: one commented TOML file per agent, data to learn from, certificates, and what to try."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernelmesh.checks import Floats, Ints, integer, non_negative
from kernelmesh.deploy.certificates import create_authority, issue, need_cryptography
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.membership import Membership, Tls
from kernelmesh.streams import Mixture

__all__ = ["PARTITIONS", "PROTOCOLS", "TOPOLOGIES", "agents_of", "create_mesh"]

# The fewest agents that make each.
TOPOLOGIES = {"ring": 3, "line": 1, "star": 2, "complete": 1, "random": 1}
PARTITIONS = ("one-class", "identical")
PROTOCOLS = ("exact-diffusion", "diffusion", "penalty", "proximal", "symmetric", "hilbert")

_STEP_SIZE = 3.0
_TEST = 2500
_CLIENT = "operator"


def create_mesh(
    folder: str | os.PathLike[str],
    *,
    agents: int = 5,
    topology: str = "ring",
    tls: bool = False,
    port: int = 7450,
    host: str = "127.0.0.1",
    seed: int = 0,
    samples: int = 60_000,
    partition: str = "one-class",
    protocol: str = "exact-diffusion",
    mode: str = "free",
    rate: float = 0.0,
) -> list[Path]:
    """Write a mesh that runs as it is, and give the agents' files back in the order of their names.

    Every agent listens on a port of its own, from `port` on, and learns the five classes of a mixture in the plane from
    `samples` samples of its own: of one class only (agent i sees class i mod 5), or of all with partition "identical".
    The same seed writes the same files, but for certificates.
    """
    folder = Path(folder)
    plan = _Plan(
        agents=agents,
        topology=topology,
        tls=tls,
        port=port,
        host=host,
        samples=samples,
        partition=partition,
        protocol=protocol,
        mode=mode,
        rate=rate,
    )
    rng = np.random.default_rng(integer("create_mesh", "seed", seed, minimum=0))
    mixture = Mixture.draw(rng=rng)
    held = mixture.sample(_TEST, rng=rng)
    graph = plan.graph(rng)
    places = plan.places(graph)
    if tls:
        need_cryptography()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        remedy = "name another one, or remove it first"
        raise InvalidArgument("create_mesh", "folder", "be new or empty", str(folder), remedy=remedy)
    (folder / "data").mkdir(parents=True)
    _write_samples(folder / "data" / "test.csv", *held)
    for i, own in enumerate(rng.spawn(agents)):
        _write_samples(folder / "data" / f"{places[i].name}.csv", *plan.draw(mixture, i, own))
    if tls:
        create_authority(folder / "tls")
        hosts = tuple(dict.fromkeys(("localhost", "127.0.0.1", host)))
        for name in (*(place.name for place in places), _CLIENT):
            issue(folder / "tls", name, hosts)
    files = [folder / f"{place.name}.toml" for place in places]
    for file, place in zip(files, places, strict=True):
        file.write_text(plan.settings(place, graph), encoding="utf-8")
    (folder / "README.md").write_text(plan.readme(places), encoding="utf-8")
    return files


def agents_of(folder: str | os.PathLike[str]) -> list[Path]:
    """The agents' files in a mesh's folder, in the order of their names."""
    folder = Path(folder)
    files = sorted(file for file in folder.glob("*.toml") if file.is_file() and not file.name.startswith("."))
    if not files:
        what = Verbatim(f"{str(folder)!r}, which " + ("has none" if folder.is_dir() else "is no folder"))
        remedy = "`kernelmesh mesh init` writes such a folder"
        raise InvalidArgument("mesh", "FOLDER", "hold one TOML file per agent", what, remedy=remedy)
    return files


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is to be laid out, checked before anything is written."""

    agents: int
    topology: str
    tls: bool
    port: int
    host: str
    samples: int
    partition: str
    protocol: str
    mode: str
    rate: float

    def __post_init__(self) -> None:
        integer("create_mesh", "agents", self.agents, minimum=1)
        for argument, known in (
            ("topology", tuple(TOPOLOGIES)),
            ("partition", PARTITIONS),
            ("protocol", PROTOCOLS),
            ("mode", ("free", "lock-step")),
        ):
            if getattr(self, argument) not in known:
                raise InvalidArgument("create_mesh", argument, f"be one of {', '.join(known)}", getattr(self, argument))
        if self.agents < (least := TOPOLOGIES[self.topology]):
            rule, remedy = f"be >= {least} for a {self.topology}", "a line takes any number"
            raise InvalidArgument("create_mesh", "agents", rule, self.agents, remedy=remedy)
        for argument in ("port", "samples"):
            integer("create_mesh", argument, getattr(self, argument), minimum=1)
        if self.port + self.agents > 65536:
            raise InvalidArgument("create_mesh", "port", f"leave room for {self.agents} agents below 65536", self.port)
        non_negative("create_mesh", "rate", self.rate)
        if not isinstance(self.tls, bool):
            raise InvalidArgument("create_mesh", "tls", "be True or False", self.tls)

    def graph(self, rng: np.random.Generator) -> Graph:
        """Who talks to whom; agents are named in the order of their numbers."""
        draw = rng.spawn(1)[0]  # of its own, so that the data are the same in every network
        numbered = (
            Graph.random(self.agents, probability=0.3, rng=draw)
            if self.topology == "random"
            else getattr(Graph, self.topology)(self.agents)
        )
        width = len(str(self.agents - 1)) if self.agents > 10 else 1
        return Graph(tuple(f"agent-{i:0{width}}" for i in range(self.agents)), numbered.neighbors)

    def places(self, graph: Graph) -> list[Membership]:
        """Where every agent stands."""
        host = f"[{self.host}]" if _is_v6(self.host) else self.host
        addresses = [f"{'tls' if self.tls else 'tcp'}/{host}:{self.port + i}" for i in range(self.agents)]
        places = []
        for i, name in enumerate(graph.names):
            around = {str(graph.names[j]): addresses[j] for j in graph.neighbors[i]}
            try:
                place = Membership(
                    name=str(name), listen=addresses[i], neighbors=around, mesh="demo", tls=_tls(str(name), self.tls)
                )
            except ValueError as error:
                remedy = "" if self.tls else "; a real network needs --tls"
                raise ValueError(
                    f"create_mesh: host must make addresses that agents can have, got {self.host!r}{remedy} ({error})"
                ) from None
            places.append(place)
        return places

    def draw(self, mixture: Mixture, agent: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """One agent's samples."""
        if self.partition == "identical":
            return mixture.sample(self.samples, rng=rng)
        # with fewer agents than classes some see several, so that somebody sees each
        hands = min(self.agents, mixture.classes)
        seen = np.arange(agent % hands, mixture.classes, hands)
        points, labels = Mixture(mixture.modes[seen], mixture.spread).sample(self.samples, rng=rng)
        return points, seen[labels]

    def consensus(self, graph: Graph) -> str:
        """The protocol as the file has it. Where a large penalty would drive agents apart, it stays at half of the bound."""
        ceiling = 100.0
        if self.protocol in ("penalty", "hilbert") and len(graph) > 1:
            ceiling = float(f"{1.0 / (_STEP_SIZE * graph.stiffness):.2g}")
        kind = "".join(part.title() for part in self.protocol.split("-"))
        options = {
            "ExactDiffusion": ", budget = 0.05",
            "Diffusion": "",
        }.get(kind, f', coupling = {{ kind = "Doubling", start = 0.01, every = 200, ceiling = {ceiling} }}')
        return f'{{ kind = "{kind}"{options} }}'

    def settings(self, place: Membership, graph: Graph) -> str:
        """One agent's file."""
        return "\n".join(self._lines(place, graph)) + "\n"

    def _lines(self, place: Membership, graph: Graph) -> Iterator[str]:
        quoted = json.dumps
        yield f"# The settings of {place.name}. Paths are relative to this file."
        yield f"# After a change, `kernelmesh agent --check {place.name}.toml` tells every mistake with its line."
        yield ""
        yield f"name = {quoted(place.name)}"
        yield f"mesh = {quoted(place.mesh)}  # the same for all agents that learn together"
        yield f"listen = {quoted(place.listen)}  # where this agent can be reached"
        yield f'mode = {quoted(self.mode)}  # "free": at its own pace; "lock-step": everybody waits for everybody'
        if self.mode == "free":
            yield "patience = 0.5  # seconds to wait for neighbors in a round; to be left out in lock step"
        yield 'at_end = "stay"  # when the stream has ended: "stay" and go on answering, or "leave"'
        yield 'log = "info"  # debug, info, warning or error'
        yield ""
        yield "[neighbors]  # who is listened to, and where; they must name this agent too"
        for name, address in place.neighbors.items():
            yield f"{name} = {quoted(address)}"
        yield ""
        yield "[model]  # the same for all agents"
        yield "dimension = 2  # numbers in a point"
        yield "outputs = 5  # classes, or numbers to predict"
        yield "regularization = 1e-6"
        yield f"step_size = {_STEP_SIZE}  # larger learns faster; with Squared or Huber it must stay below about 2 / κ(x, x)"
        yield 'kernel = { kind = "Gaussian", bandwidth = 0.6 }  # how far a sample is felt'
        yield 'loss = { kind = "Logistic" }  # Hinge, SquaredHinge; to predict numbers: Squared, Huber'
        yield 'compression = { kind = "Komp", budget = 0.2 }  # smaller: a finer model of more points'
        yield f"consensus = {self.consensus(graph)}  # how agents come to agree"
        yield ""
        yield "[stream]"
        yield 'kind = "file"  # file, stdin or zenoh'
        yield f"path = {quoted(f'data/{place.name}.csv')}"
        yield 'format = "csv"  # csv, ndjson or parquet'
        yield 'points = ["x1", "x2"]  # the columns that are the point'
        yield 'targets = "label"  # the column to predict'
        yield '# classes = ["ok", "fault", …]  # what the classes are called in the data; without it 0, 1, …'
        yield "batch_size = 32"
        yield "follow = false  # true: wait for more when the file ends"
        yield f"rate = {float(self.rate)}  # samples per second at most; 0: as fast as possible"
        yield ""
        yield "[checkpoint]  # an agent that is started again goes on from here"
        yield f"folder = {quoted(f'state/{place.name}')}"
        yield "every = 100  # rounds"
        if place.tls is not None:
            yield ""
            yield "[tls]  # files in PEM format; the key must be readable by its owner alone"
            for key in ("authority", "certificate", "key"):
                yield f"{key} = {quoted(getattr(place.tls, key).as_posix())}"
            yield f"clients = {quoted(list(place.tls.clients))}  # who else may ask for predictions and status"

    def readme(self, places: list[Membership]) -> str:
        """What there is, and what to try."""
        first = places[0].name
        one = "one of five classes" if self.agents >= 5 else "some of five classes"
        sees = "samples of all five classes" if self.partition == "identical" else f"samples of {one} only"
        learns = "learns together with its neighbors"
        if self.partition == "one-class" and self.protocol in ("penalty", "proximal"):
            learns += ", though not the other classes: this protocol only compares agents where they have samples"
        elif self.partition == "one-class":
            learns += ", and so the other classes too"
        lines = [
            f"# A mesh of {self.agents} agents",
            "",
            f"Each agent has {sees} ({self.samples} of them, in `data/`) and {learns}. Who talks to whom: {self.topology}; "
            f"how: {self.protocol}. Try, in this folder:",
            "",
            "```sh",
            "kernelmesh mesh up .                              # start all agents here",
            "kernelmesh mesh status .                          # in another terminal: what they are doing",
            f'kernelmesh ask {first}.toml --x "0.1, 0.2"'.ljust(50) + "# what an agent predicts at a point",
            f"kernelmesh agent --check {first}.toml".ljust(50) + "# after a change: every mistake with its line",
            f"kernelmesh agent {first}.toml".ljust(50) + "# one agent alone, as on a host of its own",
            "```",
            "",
            f"- `{first}.toml` …: the settings of each agent, with comments",
            "- `data/test.csv`: samples of all classes that no agent has seen",
            "- `state/`: what the agents have learned; without it they begin anew",
        ]
        if self.tls:
            lines += [
                f"- `tls/`: the authority, a certificate for each agent, and one for the client `{_CLIENT}`. A host needs "
                "`authority.pem` and its own agent's `.pem` and `.key`; `authority.key` stays here",
            ]
        return "\n".join(lines) + "\n"


def _tls(name: str, wanted: bool) -> Tls | None:
    if not wanted:
        return None
    here = Path("tls")
    return Tls(
        authority=here / "authority.pem",
        certificate=here / f"{name}.pem",
        key=here / f"{name}.key",
        clients=(_CLIENT,),
    )


def _is_v6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _write_samples(path: Path, points: Floats, labels: Ints) -> None:
    rows = (f"{x1:.6f},{x2:.6f},{label}\n" for (x1, x2), label in zip(points.tolist(), labels.tolist(), strict=True))
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("x1,x2,label\n")
        file.writelines(rows)

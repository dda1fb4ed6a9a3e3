"""Creates the folder of a mesh: one commented TOML file per agent, demo data, certificates, and a README."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from kernelmesh.checks import Floats, Ints, non_negative
from kernelmesh.deploy.config import QUARANTINE
from kernelmesh.deploy.template import render
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.learners import Averaged, Gradient, Landmarks
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic
from kernelmesh.numerics.schedules import Doubling
from kernelmesh.protocols import ConsensusProtocol, Diffusion, Tuning
from kernelmesh.registry import kebab, kinds
from kernelmesh.runtimes.membership import Membership, Tls
from kernelmesh.runtimes.name_list import read_names
from kernelmesh.schema import at_least, check_settings, did_you_mean, flag, one_of, setting
from kernelmesh.streams import Mixture

__all__ = ["PARTITIONS", "TOPOLOGIES", "MeshPlan", "agents_of", "create_mesh", "exclude", "protocols"]

# The minimum number of agents.
TOPOLOGIES = {"ring": 3, "line": 1, "star": 2, "complete": 1, "random": 1}
PARTITIONS = ("one-class", "identical")

_CLIENT = "operator"


def protocols() -> dict[str, type[ConsensusProtocol]]:
    """The registered protocols that exchange messages, by their command-line names."""
    return {kebab(name): kind for name, kind in kinds("protocol").items() if kind.reply}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshPlan:
    """The options of `create_mesh`, validated before anything is written.

    Every agent listens on its own port, starting at `port`, and learns the five classes of a mixture in the plane from
    its own `samples` samples: of one class only (agent i sees class i mod 5), or of all with partition "identical".

    >>> MeshPlan(agents=2)
    Traceback (most recent call last):
        ...
    kernelmesh.errors.InvalidArgument: MeshPlan: agents must be >= 3 for a ring, got 2; a line takes any number
    """

    agents: int = setting(5, check=at_least(1), doc="number of agents")
    topology: str = setting("ring", check=one_of(*TOPOLOGIES), doc="the graph")
    tls: bool = setting(False, check=flag, doc="whether to create an authority and a certificate for each agent")
    host: str = setting("127.0.0.1", doc="the address that agents listen on")
    port: int = setting(7450, check=at_least(1), doc="port of the first agent; the others use the next ones")
    protocol: str = setting("relay", check=lambda *given: one_of(*protocols())(*given), doc="the consensus protocol")
    mode: str = setting("free", check=one_of("free", "lock-step"), doc="as in an agent's file")
    partition: str = setting("one-class", check=one_of(*PARTITIONS), doc="what each agent sees")
    samples: int = setting(60_000, check=at_least(1), doc="samples per agent")
    rate: float = setting(0.0, check=non_negative, doc="maximum samples per second; 0 means no limit")
    seed: int = setting(0, check=at_least(0), doc="the same seed writes the same files, except for certificates")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.agents < (minimum := TOPOLOGIES[self.topology]):
            rule, remedy = f"be >= {minimum} for a {self.topology}", "a line takes any number"
            raise InvalidArgument("MeshPlan", "agents", rule, self.agents, remedy=remedy)
        if self.port + self.agents > 65536:
            raise InvalidArgument("MeshPlan", "port", f"leave room for {self.agents} agents below 65536", self.port)

    @property
    def names(self) -> list[str]:
        """The names of the agents."""
        width = len(str(self.agents - 1)) if self.agents > 10 else 1
        return [f"agent-{i:0{width}}" for i in range(self.agents)]

    def graph(self, rng: np.random.Generator) -> Graph:
        """The graph."""
        draw = rng.spawn(1)[0]  # its own generator, so that the data is the same in every network
        options = {"probability": 0.3, "rng": draw} if self.topology == "random" else {}
        return Graph(tuple(self.names), getattr(Graph, self.topology)(self.agents, **options).neighbors)

    def memberships(self, graph: Graph) -> list[Membership]:
        """Each agent's membership."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        addresses = [f"{'tls' if self.tls else 'tcp'}/{host}:{self.port + i}" for i in range(self.agents)]
        common: dict[str, Any] = {"mesh": "demo", "lock_step": self.mode == "lock-step"}
        try:
            return [
                Membership(
                    **common,
                    name=name,
                    number=i,
                    listen=addresses[i],
                    neighbors={str(graph.names[j]): addresses[j] for j in graph.neighbors[i]},
                    tls=_tls(name) if self.tls else None,
                )
                for i, name in enumerate(self.names)
            ]
        except InvalidArgument:
            rule, remedy = "be a host that agents can listen on", "" if self.tls else "a real network needs TLS"
            raise InvalidArgument("MeshPlan", "host", rule, self.host, remedy=remedy) from None

    def draw(self, mixture: Mixture, agent: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """One agent's samples."""
        if self.partition == "identical":
            return mixture.sample(self.samples, rng=rng)
        # with fewer agents than classes, some see several, so that every class is seen
        hands = min(self.agents, mixture.classes)
        seen = np.arange(agent % hands, mixture.classes, hands)
        points, labels = dataclasses.replace(mixture, modes=mixture.modes[seen]).sample(self.samples, rng=rng)
        return points, seen[labels]


def create_mesh(folder: str | os.PathLike[str], plan: MeshPlan | None = None) -> list[Path]:
    """Create a mesh that is ready to run, and return the agents' files in the order of their names."""
    folder, plan = Path(folder), plan or MeshPlan()
    rng = np.random.default_rng(plan.seed)
    mixture = Mixture.draw(rng=rng)
    held_out = mixture.sample(2500, rng=rng)
    graph = plan.graph(rng)
    members = plan.memberships(graph)
    if plan.tls:
        from kernelmesh.deploy.certificates import create_authority, issue  # fails before anything is written
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        remedy = "choose another folder, or delete this one first"
        raise InvalidArgument("create_mesh", "folder", "be new or empty", str(folder), remedy=remedy)
    (folder / "data").mkdir(parents=True)
    _write_samples(folder / "data" / "test.csv", *held_out)
    model, files = _model(plan, graph), []
    for i, (member, own) in enumerate(zip(members, rng.spawn(plan.agents), strict=True)):
        _write_samples(folder / "data" / f"{member.name}.csv", *plan.draw(mixture, i, own))
        files.append(folder / f"{member.name}.toml")
        files[-1].write_text(_settings(plan, member, model), encoding="utf-8")
    if plan.tls:
        create_authority(folder / "tls")
        for name in (*plan.names, _CLIENT):
            issue(folder / "tls", name, tuple(dict.fromkeys(("localhost", "127.0.0.1", plan.host))))
    (folder / "README.md").write_text(_readme(plan), encoding="utf-8")
    return files


def exclude(folder: str | os.PathLike[str], name: str, *, excluded: bool = True) -> bool:
    """Quarantine an agent of the folder, or release it; returns whether that changed anything.

    Running agents apply it within about a second, and agents started later at once. Other lines and comments are kept.
    """
    files = agents_of(folder)
    path, names = Path(folder) / QUARANTINE, [file.stem for file in files]
    if name not in names:
        raise InvalidArgument("mesh", "agent", f"be one of {', '.join(names)}", name, remedy=did_you_mean(name, names))
    if (name in read_names(path)) == excluded:
        return False
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ["# quarantined agents"]
    lines = [*lines, name] if excluded else [line for line in lines if line.partition("#")[0].strip() != name]
    draft = path.with_name(f".{path.name}")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return True


def agents_of(folder: str | os.PathLike[str]) -> list[Path]:
    """The agents' files in the folder of a mesh, in the order of their names."""
    folder = Path(folder)
    files = sorted(file for file in folder.glob("*.toml") if file.is_file() and not file.name.startswith("."))
    if not files:
        found = Verbatim(f"{str(folder)!r}, which " + ("has none" if folder.is_dir() else "is not a folder"))
        remedy = "create one with `kernelmesh mesh init`"
        raise InvalidArgument("mesh", "FOLDER", "contain one TOML file per agent", found, remedy=remedy)
    return files


def _model(plan: MeshPlan, graph: Graph) -> dict[str, Any]:
    kernel, step_size = Gaussian(bandwidth=0.6), 3.0
    tuning = Tuning(
        step_size=step_size,
        coupling=Doubling(start=0.01, every=200),
        limit=0.5,
        kernel=kernel,
        batches=[np.zeros((1, 2))],  # the worst case: the points of a mini-batch coincide
        stiffness=graph.stiffness,
    )
    protocol: Any = protocols()[plan.protocol].tuned(tuning)
    coupling: Any = getattr(protocol, "coupling", None)
    if (ceiling := getattr(coupling, "ceiling", None)) is not None:  # rounded to two digits, and to none above 100
        ceiling = min(float(f"{ceiling:.2g}"), 100.0)
        protocol = dataclasses.replace(protocol, coupling=dataclasses.replace(coupling, ceiling=ceiling))
    learner: Any = Averaged(step_size=30.0) if isinstance(protocol, Diffusion) else Gradient(step_size=step_size)
    learner = Landmarks() if protocol.shares else learner
    return {"dimension": 2, "outputs": 5, "kernel": kernel, "loss": Logistic(), "learner": learner, "protocol": protocol}


def _settings(plan: MeshPlan, member: Membership, model: dict[str, Any]) -> str:
    title = (
        f"Settings of {member.name}. Paths are relative to this file.\n"
        f"After a change, `kernelmesh agent --check {member.name}.toml` reports every mistake with its line."
    )
    top = {key: getattr(member, key) for key in ("name", "number", "mesh", "listen")} | {"mode": plan.mode}
    if plan.mode == "free" and not model["protocol"].shares:
        top["patience"] = member.patience
    stream = {"path": Path("data") / f"{member.name}.csv", "format": "csv", "follow": False, "points": ("x1", "x2")}
    values: dict[str, dict[str, Any]] = {
        "": top | {"at_end": "stay", "log": "info"},
        "neighbors": dict(member.neighbors),
        "model": dict(model),
        "stream": {**stream, "targets": "label", "batch_size": 32, "rate": float(plan.rate)},
        "checkpoint": {"folder": Path("state") / member.name, "every": 100},
    }
    if member.tls is not None:
        values["tls"] = {key: value for key, value in vars(member.tls).items() if value is not None}
    return render(title, values, stream_kind="file")


_README = """\
# A mesh of {agents} agents

Each agent has {sees} ({samples} of them, in `data/`) and learns together with its neighbors.
Topology: {topology}; protocol: {protocol}.
Try, in this folder:

```sh
kernelmesh mesh up .                              # start all agents on this machine
kernelmesh mesh status .                          # in another terminal: show their status
kernelmesh ask {first}.toml --x "0.1, 0.2"        # request a prediction
kernelmesh agent --check {first}.toml             # after a change: list every mistake with its line
kernelmesh agent {first}.toml                     # start a single agent, as on its own host
```

- `{first}.toml` …: the settings of each agent, with comments
- `data/test.csv`: samples of all classes that no agent has seen
- `state/`: what the agents have learned; without it they start over
"""
_README_TLS = f"""\
- `tls/`: the authority, a certificate for each agent, and one for the client `{_CLIENT}`.
  A host needs `authority.pem` and its own agent's `.pem` and `.key`; `authority.key` stays here.
"""


def _readme(plan: MeshPlan) -> str:
    """The README of a mesh: its contents, and what to try."""
    sees = "samples of all five classes"
    if plan.partition == "one-class":
        sees = f"samples of {'one' if plan.agents >= 5 else 'some'} of five classes only"
    return _README.format(**vars(plan), first=plan.names[0], sees=sees) + (_README_TLS if plan.tls else "")


def _tls(name: str) -> Tls:
    authority, certificate, key = (Path("tls") / file for file in ("authority.pem", f"{name}.pem", f"{name}.key"))
    return Tls(authority=authority, certificate=certificate, key=key, clients=(_CLIENT,))


def _write_samples(path: Path, points: Floats, labels: Ints) -> None:
    table = np.column_stack((points, labels))
    np.savetxt(path, table, fmt=("%.6f", "%.6f", "%d"), delimiter=",", header="x1,x2,label", comments="")

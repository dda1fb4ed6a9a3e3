"""Reads an agent's TOML file and reports all mistakes at once, each with its line."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from kernelmesh.agent import Agent
from kernelmesh.deploy.sections import SECTIONS, AgentSection, CheckpointSection, ModelSection, StreamSection
from kernelmesh.deploy.tables import Table, declared, read_root
from kernelmesh.deploy.toml_positions import KeyPath, locate
from kernelmesh.errors import MISSING, InvalidArgument, InvalidConfig, MissingExtra, Problem, Verbatim
from kernelmesh.learners import Landmarks, Learner, SecondOrder
from kernelmesh.numerics.compression import Komp
from kernelmesh.protocols import Diffusion, Local, Relay
from kernelmesh.registry import kinds
from kernelmesh.runtimes.membership import Membership, Tls, agent_name, endpoint_with
from kernelmesh.schema import settings_of
from kernelmesh.streams import Columns, Paced, Source, StreamKind

__all__ = ["QUARANTINE", "Config", "InvalidConfig", "read"]

QUARANTINE = "quarantine.txt"
"""The file, next to the agents' files, with the names of quarantined agents."""

_MAX_ORDER, _MAX_SECOND_ORDER = 500, 2000  # points: on a host, no model may grow without bound
_OF_MEMBERSHIP = ("name", "number", "mesh", "listen", "patience", "max_bytes", "max_bytes_per_second", "insecure")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The contents of an agent's file; paths are absolute."""

    path: Path
    agent: Agent
    membership: Membership
    stream: StreamSection
    checkpoint: CheckpointSection
    stay: bool
    """Whether to keep answering requests after the stream has ended."""
    log: str
    quarantine: Path
    """The file with the names of quarantined agents."""

    @property
    def mode(self) -> str:
        """The mode as written in the file: free or lock-step."""
        return "lock-step" if self.membership.lock_step else "free"

    def open_stream(self) -> Source:
        """Open the stream."""
        stream, agent = self.stream, self.agent
        names: dict[str, Any] = {"points": stream.points, "targets": stream.targets, "classes": stream.classes or None}
        columns = Columns(**names, labels=agent.loss.classifies, outputs=agent.outputs)
        source = stream.kind.open(columns, batch_size=stream.batch_size)
        return Paced(source, stream.rate) if stream.rate > 0 else source

    def line_of(self, *key: str | int) -> int:
        """The line of a key in the file."""
        return locate(self.path.read_text(encoding="utf-8")).of(key)

    def problem(self, key: KeyPath, error: InvalidArgument) -> Problem:
        """A mistake found only when the settings are used, with its line in the file."""
        return Problem(str(self.path), self.line_of(*key), ".".join(map(str, key)), error.predicate)


def read(path: str | os.PathLike[str]) -> Config:
    """Read one agent's settings, or raise `InvalidConfig` with every mistake. Paths are relative to the file."""
    path = Path(path)
    root = read_root(path)
    top = AgentSection(**root.read(AgentSection, others=[*filter(None, SECTIONS)]))
    tls = _tls(root)
    model, table, folder = (root.table(name) for name in ("model", "stream", "checkpoint"))
    agent = None if model is None else _agent(model, alone=not root.values.get("neighbors"))
    stream = None if table is None else _stream(table, model, agent)
    parts: dict[str, Any] = {
        "agent": agent,
        "membership": _membership(root, top, tls, top.max_points or _usual_points(agent, stream)),
        "stream": stream,
        "checkpoint": folder and folder.build(CheckpointSection, folder.read(CheckpointSection)),
    }
    if model is not None and agent is not None and model.ok("learner", "protocol"):
        _check_modes(root, top, agent)
    root.problems.check()
    quarantine = top.quarantine or path.absolute().parent / QUARANTINE
    return Config(path=path.absolute(), stay=top.at_end == "stay", log=top.log, quarantine=quarantine, **parts)


def _check_modes(root: Table, top: AgentSection, agent: Agent) -> None:
    """Check the settings that only agents which share sums, or that do not run in lock step, have."""
    shares, free = agent.protocol.shares, top.mode == "free"
    with_protocol = f"with the protocol {type(agent.protocol).__name__}"
    if shares and top.number is None and root.ok("number"):
        remedy = "number the agents of a mesh from 0; `kernelmesh mesh init` does"
        root.wrong("number", f"be given {with_protocol}", MISSING, remedy)
    if "patience" in root.values and not (free and not shares):
        where, remedy = 'with mode = "lock-step"', "in lock step, every round waits for all neighbors"
        if free:
            where, remedy = with_protocol, "agents that share sums never wait for replies"
        root.wrong("patience", f"be omitted {where}", root.values["patience"], remedy)
    if top.max_bytes_per_second is not None and not (free and shares):
        where = 'with mode = "lock-step"' if shares else with_protocol
        remedy = "only agents that share sums freely can send less"
        root.wrong("max_bytes_per_second", f"be omitted {where}", top.max_bytes_per_second, remedy)


def _usual_points(agent: Agent | None, stream: StreamSection | None) -> int:
    """A limit that correct neighbors with the same settings never exceed."""
    learner = None if agent is None else agent.learner
    order = getattr(getattr(learner, "compression", learner), "max_order", None)
    return max(order or _MAX_ORDER, 4 * (0 if stream is None else stream.batch_size))


def _membership(root: Table, top: AgentSection, tls: Tls | None, max_points: int) -> Membership | None:
    if top.insecure and tls is not None:
        root.wrong("insecure", "be false or omitted with TLS", True)
    values = {key: getattr(top, key) for key in _OF_MEMBERSHIP}
    values |= {"lock_step": top.mode == "lock-step", "tls": tls, "max_points": max_points}
    values["neighbors"] = _neighbors(root, encrypted=tls is not None)
    return root.build(Membership, values) if root.ok("name") else None


def _neighbors(root: Table, *, encrypted: bool) -> dict[str, str]:
    table = root.table("neighbors", required=False)
    if table is None:
        return {}
    addresses = {str(root.values.get("listen")): "this agent"}
    for neighbor, address in table.values.items():
        try:
            agent_name("", neighbor, neighbor)
            if neighbor == root.values.get("name"):
                raise InvalidArgument("", neighbor, "be an agent other than this one", address)
            if address != "":
                endpoint_with(encrypted, "", neighbor, address)
                if address in addresses:
                    raise InvalidArgument("", neighbor, f"have a different address from {addresses[address]}", address)
                addresses[address] = neighbor
        except InvalidArgument as error:
            table.add(neighbor, error)
    return {name: address for name, address in table.values.items() if table.ok(name)}


def _tls(root: Table) -> Tls | None:
    table = root.table("tls", required=False)
    if table is None:
        return None
    values = table.read(Tls)
    files = {key: values[key] for key in ("authority", "certificate", "key")}
    if table.ok(*files):
        name = root.values.get("name")
        try:
            from kernelmesh.deploy.certificates import tls_problems

            for problem in tls_problems(**files, name=name if isinstance(name, str) else None):
                table.add(problem.argument, problem)
        except MissingExtra as error:
            root.add("tls", error)
    return table.build(Tls, values)


def _agent(table: Table, *, alone: bool) -> Agent | None:
    values = table.read(ModelSection)
    learner = values.get("learner") or (SecondOrder() if alone else Landmarks())
    protocol = values.get("protocol") or (Local() if alone else Relay() if isinstance(learner, Landmarks) else Diffusion())
    values |= {"learner": _capped(learner), "protocol": protocol}
    return table.build(Agent, values, settings=settings_of(ModelSection))


def _capped(learner: Any) -> Learner:
    """The learner with a limit on the model order."""
    if isinstance(learner, SecondOrder) and learner.max_order is None:
        return replace(learner, max_order=_MAX_SECOND_ORDER)
    compression = getattr(learner, "compression", None)
    if isinstance(compression, Komp) and compression.max_order is None:
        learner = replace(learner, compression=replace(compression, max_order=_MAX_ORDER))
    return cast(Learner, learner)


def _stream(table: Table, model: Table | None, agent: Agent | None) -> StreamSection | None:
    """The stream, whose kind has its own settings in the same table."""
    kind = table.kind("stream")
    # without a kind, settings of every kind are accepted; only then, and for an unknown key, plugins are looked for
    own = {
        key: made for each in (kinds("stream").values() if kind is None else [kind]) for key, made in declared(each).items()
    }

    def of_another_kind(key: str) -> InvalidArgument | None:
        owners = [f'"{name}"' for name, other in kinds("stream").items() if kind is not None and key in declared(other)]
        if not owners:
            return None
        rule, remedy = f'be omitted with kind = "{table.values["kind"]}"', f"only kind = {' or '.join(owners)} takes it"
        return InvalidArgument("", key, rule, table.values[key], remedy=remedy)

    sections = settings_of(StreamSection)
    table.finish({**sections, **own}, hint=of_another_kind)
    values = {
        key: table.value(one) for key, one in sections.items() if key != "kind" and (one.required or key in table.values)
    }
    if table.ok("points", "targets") and (both := sorted(set(values["points"]) & set(values["targets"]))):
        table.wrong("targets", "be columns that are not points", both[0])
    if model is not None and agent is not None:
        _check_columns(table, model, agent, values)
    made = None if kind is None else table.build(kind, table.read_values(own))
    if made is not None and not isinstance(made, StreamKind):
        table.wrong("kind", "derive from kernelmesh.streams.StreamKind", Verbatim(kind.__qualname__))
    return StreamSection(kind=made, **values) if isinstance(made, StreamKind) else None


def _check_columns(table: Table, model: Table, agent: Agent, values: dict[str, Any]) -> None:
    """Check that the number of columns and classes matches the model."""
    dimension, outputs, loss = agent.dimension, agent.outputs, type(agent.loss).__name__
    rules = {
        "points": (dimension, f"have as many columns as model.dimension = {dimension}"),
        "targets": (outputs, f"have as many columns as model.outputs = {outputs}"),
        "classes": (0, f"be omitted with {loss}, which predicts numbers"),
    }
    if agent.loss.classifies:
        rules["targets"] = (1, f"be one column, the class, with {loss}")
        rules["classes"] = (outputs, f"have as many names as model.outputs = {outputs}")
    for key, (count, rule) in rules.items():
        relevant = ("dimension",) if key == "points" else ("loss", "outputs")
        if key in values and table.ok(key) and model.ok(*relevant) and len(values[key]) != count:
            table.wrong(key, rule, list(values[key]))

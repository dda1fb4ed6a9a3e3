"""One agent's settings in a TOML file: read with every mistake found at once, each with its line."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh import consensus, storage
from kernelmesh.agent import Agent
from kernelmesh.checks import integer, non_negative, positive
from kernelmesh.deploy.certificates import faults, need_cryptography
from kernelmesh.deploy.tables import Table, argument_of, build, root_of
from kernelmesh.errors import InvalidConfig, Verbatim
from kernelmesh.numerics import compression, kernels, losses, schedules
from kernelmesh.runtimes.membership import Membership, Tls

__all__ = ["ROLES", "CheckpointSettings", "Config", "InvalidConfig", "StreamSettings", "read"]

ROLES: Mapping[str, Mapping[str, type[Any]]] = {
    role: {kind.__name__: kind for kind in kinds} for role, kinds in storage.KINDS.items() if role != "graph"
}
"""The kinds that a file may name, by the role that they play."""

# The role of whatever is a table within a table.
_PARTS = {
    "budget": "schedule",
    "coupling": "schedule",
    "first": "kernel",
    "kernel": "kernel",
    "of": "schedule",
    "second": "kernel",
}
_EXAMPLES = {
    "kernel": '{ kind = "Gaussian", bandwidth = 1.0 }',
    "loss": '{ kind = "Logistic" }',
    "schedule": "3.0",
    "compression": '{ kind = "Komp", budget = 0.1 }',
    "consensus": '{ kind = "Diffusion" }',
}
# Stands for what is missing or refused while the rest is looked at: nothing here is refused with anything else.
_HARMLESS: Mapping[str, Any] = {
    "budget": 0.0,
    "compression": compression.Uncompressed(),
    "consensus": consensus.Local(),
    "coupling": 0.0,
    "dimension": 1,
    "every": 1,
    "explosion": 1e4,
    "factor": 1.0,
    "first": kernels.Gaussian(),
    "kernel": kernels.Gaussian(),
    "loss": losses.Squared(),
    "of": schedules.Constant(0.0),
    "outputs": 2,
    "radius": 1.0,
    "regularization": 0.0,
    "scale": 1.0,
    "second": kernels.Gaussian(),
    "start": 1.0,
    "step_size": 0.0,
    "value": 1.0,
}
# Keys that are sometimes written into another table than the one they belong in ("": the top of the file).
_HOMES = {
    "": ("name", "mesh", "listen", "mode", "patience", "at_end", "insecure", "max_bytes", "log"),
    "model": (
        "dimension",
        "outputs",
        "regularization",
        "radius",
        "explosion",
        "step_size",
        "kernel",
        "loss",
        "compression",
        "consensus",
    ),
    "stream": ("path", "format", "points", "targets", "classes", "batch_size", "follow", "rate"),
    "checkpoint": ("folder", "every"),
    "tls": ("authority", "certificate", "clients"),
}
_KINDS = ("file", "stdin", "zenoh")
_OPTIONS = {"path": "file", "follow": "file", "key": "zenoh"}
_FORMATS = ("csv", "ndjson", "parquet")
_SUFFIXES = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
_LOGS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """Where an agent's samples come from and what they mean; paths are absolute."""

    kind: str
    """file, stdin or zenoh."""
    format: str
    """csv, ndjson or parquet."""
    points: tuple[str, ...]
    """The columns that are the point."""
    targets: tuple[str, ...]
    """The columns that are to be predicted: the class in one column, or as many as there are outputs."""
    path: Path | None = None
    """The file; None for other kinds."""
    key: str | None = None
    """The zenoh key a sensor publishes to; None for other kinds."""
    classes: tuple[str, ...] = ()
    """What the classes are called in the data, in the order of the outputs; empty where they are numbers 0, 1, …."""
    batch_size: int = 32
    follow: bool = False
    """Whether to wait for more when the file ends."""
    rate: float = 0.0
    """Samples per second at most; 0: as fast as they come."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Where and how often an agent keeps what it has learned."""

    folder: Path
    every: int = 100
    """Rounds."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All that one agent's file says."""

    path: Path
    agent: Agent
    place: Membership
    stream: StreamSettings
    keep: CheckpointSettings
    stay: bool
    """Whether to go on answering when the stream has ended."""
    log: str

    @property
    def settings(self) -> dict[str, Any]:
        """What a checkpoint must agree with, as JSON can hold it; all else may be changed between two runs."""
        return {
            "dimension": self.agent.dimension,
            "outputs": self.agent.outputs,
            "kernel": storage.describe(self.agent.kernel),
            "loss": storage.describe(self.agent.loss),
            "consensus": type(self.agent.consensus).__name__,
        }


def read(path: str | os.PathLike[str]) -> Config:
    """The settings of one agent, or `InvalidConfig` with every one there is. Paths are relative to the file."""
    path = Path(path)
    root, base = root_of(path, _HOMES), path.absolute().parent
    tls = _tls(root, base)
    place = _place(root, tls)
    model, stream, keep = root.table("model"), root.table("stream"), root.table("checkpoint")
    agent = _agent(model, alone=not root.values.get("neighbors")) if model else None
    settings = _stream(stream, base, model) if stream else None
    kept = _keep(keep, base) if keep else None
    stay = root.text("at_end", "stay", allowed=("stay", "leave")) == "stay"
    log = root.text("log", "info", allowed=_LOGS)
    root.finish()
    root.notes.check()
    assert place is not None
    assert agent is not None
    assert settings is not None
    assert kept is not None
    return Config(path=path.absolute(), agent=agent, place=place, stream=settings, keep=kept, stay=stay, log=log)


def _part(parent: Table, key: str, role: str, *, needed: bool = True, given: Mapping[str, Any] | None = None) -> Any:
    """A kernel, loss, schedule, compression or protocol: a table with its kind and options (a schedule: or a number).

    `given` has options that follow from other ones.
    """
    value = parent.take(key, ... if needed else None, example=_EXAMPLES[role])
    if value is None or (role == "schedule" and not isinstance(value, dict)):
        if value is not None and key == "of":  # a schedule of a schedule
            return parent.checked(key, schedules.as_schedule, _HARMLESS[key])
        return _HARMLESS[key] if value is None else value
    if not isinstance(value, dict):
        parent.wrong(key, f"be a table such as {_EXAMPLES[role]}", value)
        return _HARMLESS[key]
    table = Table(parent.notes, (*parent.path, key), value)
    kind = table.text("kind", allowed=tuple(ROLES[role]))
    made = _of_kind(table, ROLES[role][kind], given or {}) if kind else None
    if table.bad:
        parent.bad.add(key)
    return _HARMLESS[key] if table.bad else made


def _of_kind(table: Table, kind: type[Any], given: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = dict(given)
    for field in dataclasses.fields(kind):
        if not field.init or field.name in given:
            continue
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name in _PARTS and (needed or field.name in table):
            values[field.name] = _part(table, field.name, _PARTS[field.name])
        elif needed or field.name in table:
            value = table.take(field.name)
            values[field.name] = value if table.fine(field.name) else _HARMLESS[field.name]
        else:
            table.known.append(field.name)
    if kind is compression.Komp:
        table.known.append("parsimony")
    table.finish()
    return build(table, kind, values, _HARMLESS)


def _agent(table: Table, *, alone: bool) -> Agent | None:
    values: dict[str, Any] = {
        "dimension": table.checked("dimension", _counted(1), 1, example="2"),
        "outputs": table.checked("outputs", _counted(1), 2, example="5"),
    }
    for key, check in (
        ("regularization", non_negative),
        ("radius", _positive_or_infinite),
        ("explosion", _positive_or_infinite),
    ):
        number = table.checked(key, check, _HARMLESS[key])
        if key in table:
            values[key] = number
    for key, role in (("step_size", "schedule"), ("kernel", "kernel"), ("loss", "loss")):
        values[key] = _part(table, key, role)
    values["compression"] = _compression(table, values["step_size"])
    values["consensus"] = (
        _part(table, "consensus", "consensus", needed=False)
        if "consensus" in table
        else _usual_consensus(values["compression"], alone=alone)
    )
    table.known.append("consensus")
    table.finish()
    return build(table, Agent, values, _HARMLESS)


def _counted(least: int) -> Callable[[str, str, Any], int]:
    return lambda owner, argument, value: integer(owner, argument, value, minimum=least)


def _positive_or_infinite(owner: str, argument: str, value: object) -> float:
    return positive(owner, argument, value, infinite=True)


def _compression(model: Table, step_size: Any) -> Any:
    """`parsimony` = K is short for the budget K η^{3/2} of the model's own step size."""
    value, given = model.values.get("compression"), {}
    if isinstance(value, dict) and value.get("kind") == "Komp" and "parsimony" in value:
        table = Table(model.notes, (*model.path, "compression"), value)
        scale = table.checked("parsimony", non_negative, 0.0)
        if "budget" in value:
            table.wrong("parsimony", "be left out where there is a budget", value["parsimony"], "keep one of the two")
        elif table.fine("parsimony") and model.fine("step_size"):
            with contextlib.suppress(ValueError):  # the step size will be refused in its own place
                given = {"budget": compression.Komp.parsimonious(step_size, parsimony=scale).budget}
        if "budget" not in value:
            given = given or {"budget": 0.0}
        made = _part(model, "compression", "compression", given=given)
        model.bad |= {"compression"} if table.bad else set()
        return made
    return _part(model, "compression", "compression")


def _usual_consensus(small: compression.Compression, *, alone: bool) -> consensus.Consensus:
    """What is best where nothing is said: without bias if both ends of an edge can use the same budget."""
    if alone:
        return consensus.Local()
    budget = _constant(small.budget) if isinstance(small, compression.Komp) else None
    return consensus.Diffusion() if budget is None else consensus.ExactDiffusion(budget=budget / 4)


def _constant(schedule: Any) -> float | None:
    """The value of a schedule that never changes."""
    if isinstance(schedule, schedules.Constant):
        return float(schedule.value)
    if isinstance(schedule, schedules.Power) and _constant(schedule.of) is not None:
        return schedule(0)
    return None


def _place(root: Table, tls: Tls | None) -> Membership | None:
    scheme = "tcp" if tls is None else "tls"
    around = root.values.get("neighbors")
    harmless = {
        "name": next(
            name for name in map(str, itertools.count()) if not isinstance(around, dict) or name not in around
        ),
        "mesh": "mesh",
        "listen": f"{scheme}/127.0.0.1:1",
        "patience": 0.5,
        "max_bytes": 1 << 24,
    }
    lock_step = root.text("mode", "free", allowed=("free", "lock-step")) == "lock-step"
    values: dict[str, Any] = {"tls": tls, "lock_step": lock_step}
    insecure = root.flag("insecure", False)
    values["insecure"] = insecure or not root.fine("insecure")
    if insecure and tls is not None:
        root.wrong("insecure", "be false or left out where there are TLS files", True)
    for key, example in (("name", '"agent-0"'), ("listen", f'"{scheme}/127.0.0.1:7450"')):
        value = root.take(key, example=example)
        values[key] = value if root.fine(key) else harmless[key]
    for key in ("mesh", "patience", "max_bytes"):
        root.known.append(key)
        if key in root:
            values[key] = root.values[key]
    if lock_step and "patience" in root:
        remedy = "everybody waits for everybody there"
        root.wrong("patience", 'be left out with mode = "lock-step"', values.pop("patience"), remedy)
    heard = _neighbors(root, values, harmless)
    place = build(root, Membership, values, harmless)
    return dataclasses.replace(place, neighbors=heard) if place is not None and root.fine("neighbors") else None


def _neighbors(root: Table, values: Mapping[str, Any], harmless: Mapping[str, Any]) -> dict[str, str]:
    table = root.table("neighbors", needed=False)
    addresses = {root.values.get("listen"): "this agent"} if isinstance(root.values.get("listen"), str) else {}
    for neighbor, endpoint in table.values.items() if table else ():
        assert table is not None
        if neighbor == values["name"]:
            table.wrong(neighbor, "be another agent than this one", endpoint)
            continue
        try:
            Membership(
                name=harmless["name"], listen=harmless["listen"], neighbors={neighbor: endpoint}, tls=values["tls"]
            )
        except ValueError as error:
            table.blame(neighbor, error)
            continue
        if endpoint and endpoint in addresses:
            table.wrong(neighbor, f"have another address than {addresses[endpoint]}", endpoint)
        addresses.setdefault(endpoint, neighbor)
    if table and table.bad:
        root.bad.add("neighbors")
    return dict(table.values) if table and not table.bad else {}


def _tls(root: Table, base: Path) -> Tls | None:
    table = root.table("tls", needed=False)
    if table is None:
        return None
    files = {
        key: table.path_to(key, base, example=f'"tls/{example}"')
        for key, example in (("authority", "authority.pem"), ("certificate", "agent-0.pem"), ("key", "agent-0.key"))
    }
    clients = table.texts("clients", ())
    table.finish()
    if table.fine(*files):
        name = root.values.get("name")
        try:
            need_cryptography()
            for fault in faults(**files, name=name if isinstance(name, str) else None):
                table.blame(argument_of(fault), fault)
        except ImportError as error:
            root.wrong("tls", "be a table that can be read here", Verbatim("no library for it"), str(error))
    return build(table, Tls, {**files, "clients": clients}, {})


def _stream(table: Table, base: Path, model: Table | None) -> StreamSettings:
    kind = table.text("kind", allowed=_KINDS)
    for option, owner in _OPTIONS.items():
        table.known.append(option)
        if kind not in ("", owner) and option in table:
            value, remedy = table.values[option], f'only kind = "{owner}" has it'
            table.wrong(option, f'be left out with kind = "{kind}"', value, remedy)
    path = table.path_to("path", base, example='"data/agent-0.csv"') if kind == "file" else None
    follow = table.flag("follow", False) if kind == "file" else False
    key = _zenoh_key(table) if kind == "zenoh" else None
    form = _format(table, kind, path)
    if path is not None and table.fine("path", "follow") and not follow and not os.path.exists(path):
        table.wrong("path", "be a file that is there", str(path), "write follow = true to wait for it")
    elif path is not None and table.fine("path") and os.path.isdir(path):
        table.wrong("path", "be a file", Verbatim(f"the folder {str(path)!r}"))
    points = table.texts("points", example='["x1", "x2"]')
    if isinstance(table.values.get("targets"), str):
        targets: tuple[str, ...] = (table.text("targets"),)
    else:
        targets = table.texts("targets", example='"label"')
    classes = table.texts("classes", ())
    batch_size = table.checked("batch_size", _counted(1), 32)
    rate = table.checked("rate", non_negative, 0.0)
    if both := sorted(set(points) & set(targets)):
        table.wrong("targets", "be other columns than the points", both[0])
    if model is not None:
        _agree(table, model, points, targets, classes)
    table.finish()
    return StreamSettings(
        kind=kind,
        format=form,
        points=points,
        targets=targets,
        path=path,
        key=key,
        classes=classes,
        batch_size=batch_size,
        follow=follow,
        rate=rate,
    )


def _zenoh_key(table: Table) -> str:
    key = table.text("key", example='"sensors/north"')
    for part in key.split("/") if key else ():
        if not part or not part.isprintable() or set(part) & set("#?$") or ("*" in part and part not in ("*", "**")):
            table.wrong("key", "be names joined by single slashes (* for any name, ** for any number of them)", key)
            break
    return key


def _format(table: Table, kind: str, path: Path | None) -> str:
    # a publication has no header, so that what a sensor publishes must name its columns itself
    allowed = {"stdin": ("csv", "ndjson"), "zenoh": ("ndjson",)}.get(kind, _FORMATS)
    usual = {"stdin": "csv", "zenoh": "ndjson"}.get(kind, "csv")
    if path is not None and table.fine("path"):
        usual = _SUFFIXES.get(path.suffix.lower(), "")
        if not usual and "format" not in table:
            table.known.append("format")
            table.wrong(
                "format", f"be one of {', '.join(allowed)} where the file's name does not tell", Verbatim("nothing")
            )
            return ""
    return table.text("format", usual, allowed=allowed)


def _agree(table: Table, model: Table, points: Sequence[str], targets: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse columns and classes that are not as many as the model has."""
    if table.fine("points") and model.fine("dimension") and len(points) != model.values["dimension"]:
        rule = f"have as many columns as model.dimension = {model.values['dimension']}"
        table.wrong("points", rule, list(points))
    if not model.fine("loss", "outputs"):
        return
    outputs, loss = model.values["outputs"], model.values["loss"]["kind"]
    classifies = ROLES["loss"][loss].classifies
    if table.fine("targets") and classifies and len(targets) != 1:
        table.wrong("targets", f"be one column, the class, with {loss}", list(targets))
    elif table.fine("targets") and not classifies and len(targets) != outputs:
        table.wrong("targets", f"have as many columns as model.outputs = {outputs}", list(targets))
    if classes and not classifies:
        table.wrong("classes", f"be left out with {loss}, which predicts numbers", list(classes))
    elif classes and len(classes) != outputs:
        table.wrong("classes", f"have as many names as model.outputs = {outputs}", list(classes))


def _keep(table: Table, base: Path) -> CheckpointSettings:
    folder = table.path_to("folder", base, example='"state/agent-0"')
    every = table.checked("every", _counted(1), 100)
    if table.fine("folder") and os.path.exists(folder) and not os.path.isdir(folder):
        table.wrong("folder", "be a folder", Verbatim(f"the file {str(folder)!r}"))
    table.finish()
    return CheckpointSettings(folder=folder, every=every)

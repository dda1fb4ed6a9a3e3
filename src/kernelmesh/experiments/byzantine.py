"""Byzantine agents: the accuracy of honest agents under attack, with and without screening."""

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import ArrayStream, Faults, Screening, register, simulate
from kernelmesh.errors import Diverged, InvalidArgument
from kernelmesh.experiments import Cell, Experiment, Findings, Session, heterogeneous, means
from kernelmesh.experiments.mixture import Task
from kernelmesh.experiments.protocols import ProtocolName
from kernelmesh.experiments.settings import Count, Index
from kernelmesh.registry import kebab, kinds
from kernelmesh.report import COLORS, panel, style_of
from kernelmesh.runtimes.attacks import Attack
from kernelmesh.schema import flag, one_of, setting
from kernelmesh.streams import StreamSlice

__all__ = ["EXPERIMENT", "Config", "attacks"]

_CALM = "none"


def attacks() -> dict[str, type[Attack]]:
    """All registered attacks by the names that the command line has for them.

    >>> "sign-flip" in attacks()
    True
    """
    return {kebab(name): kind for name, kind in kinds("attack").items()}


def _check_attack(owner: str, argument: str, value: object) -> str:
    return str(one_of(_CALM, *attacks())(owner, argument, value))


@dataclass(frozen=True, kw_only=True)
class Config(heterogeneous.Config, owner="byzantine"):
    """One attack, without and with screening; `--all` covers every attack and two protocols."""

    protocol: ProtocolName = "shared-statistics"
    partition: Annotated[str, one_of("identical", "two-class", "one-class")] = "two-class"
    attack: Annotated[str, _check_attack] = setting("sign-flip", doc="the attack of bad agents; none for no attack")
    bad: Index = setting(4, doc="bad agents, spread evenly over the network")
    first: Count = setting(61, doc="the round in which the attack begins")
    last: Count = setting(100, doc="the round in which it ends")
    rounds: Count = setting(300, doc="total number of rounds")
    screened: Annotated[bool, flag] = setting(False, doc="set by the experiment itself")
    seeds: Count = setting(1, doc="number of seeds to average over")
    every: Index = setting(0, doc="rounds between exchanges; 0 means as many as are usual for the protocol")
    measure_every: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.first <= self.last < self.rounds:
            rule = f"be from `first` = {self.first} on, and below `rounds` = {self.rounds}"
            raise InvalidArgument(self.owner, "last", rule, self.last)
        if self.last // self.measure_every * self.measure_every < self.first:
            rule = f"measure a round from `first` = {self.first} to `last` = {self.last}"
            raise InvalidArgument(self.owner, "measure_every", rule, self.measure_every)
        if self.bad > self.agents // 2:
            raise InvalidArgument(self.owner, "bad", f"be at most half of {self.agents} agents", self.bad)

    @property
    def names(self) -> tuple[int, ...]:
        """The bad agents."""
        return tuple(int(each) for each in np.linspace(2, self.agents, self.bad, endpoint=False)) if self.bad else ()


def cell(config: Config) -> Mapping[str, Any]:
    """One network: what its honest agents know before, during and after the attack."""
    task, honest = Task.draw(config), [i for i in range(config.agents) if i not in config.names]
    screening = Screening() if config.screened else None
    agent = dataclasses.replace(task.agent(), screening=screening)
    spans = [(attacks()[config.attack](), config.first, config.last)] if config.attack != _CALM else []
    faults = Faults(byzantine=dict.fromkeys(config.names, spans), rng=np.random.default_rng(config.seed)) if spans else None
    curve, left_out, spent, sent, ended = [], 0, {True: 0.0, False: 0.0}, 0, "complete"
    began = time.process_time()
    try:
        for now in simulate(agent, task.graph, _streams(config, task), faults=faults):
            spent[config.first <= now.number <= config.last] += time.process_time() - began
            left_out += sum(len(info.left_out) for i, info in enumerate(now.infos) if info is not None and i in honest)
            sent = int(now.bytes_sent.sum())
            if now.number % config.measure_every == 0:
                functions = [now.functions[i] for i in honest]
                right = [(f(task.held_points).argmax(axis=1) == task.held_labels).mean() for f in functions]
                order = float(np.mean([f.order for f in functions]))
                curve.append([now.number, float(np.mean(right)), float(min(right)), order])
            began = time.process_time()
    except Diverged:
        ended = "diverged"
    return {
        "partition": config.partition,
        "attack": config.attack,
        "protocol": config.protocol,
        "screened": config.screened,
        "seed": config.seed,
        "ended": ended,
        "left_out": left_out,
        "bytes": sent,
        "cpu_seconds": sum(spent.values()),
        "cpu_during": spent[True],
        "curve": curve,
        **_phases(config, np.array(curve).reshape(-1, 4), ended),
    }


def _streams(config: Config, task: Task) -> list[StreamSlice]:
    """Samples for all rounds, of the classes that each agent sees."""
    out = []
    for i, part in enumerate(task.streams):
        own = part.stream
        passes = math.ceil(config.rounds * config.batch_size / len(own.points)) + 1
        rng = np.random.default_rng([config.seed, i])
        stream = ArrayStream(own.points, own.targets, batch_size=config.batch_size, passes=passes, rng=rng)
        out.append(StreamSlice(stream, 0, config.rounds))
    return out


def _phases(config: Config, curve: np.ndarray[Any, Any], ended: str) -> dict[str, float]:
    """Accuracies and model orders of honest agents in the three phases; 0 where a run did not get so far."""
    during = curve[(curve[:, 0] >= config.first) & (curve[:, 0] <= config.last)]
    return {
        "during_mean": float(during[:, 1].mean()) if len(during) else 0.0,
        "during_lowest": float(during[:, 1].min()) if len(during) else 0.0,
        "during_worst_agent": float(during[:, 2].min()) if len(during) else 0.0,
        "after_mean": float(curve[-1, 1]) if ended == "complete" else 0.0,
        "after_worst_agent": float(curve[-1, 2]) if ended == "complete" else 0.0,
        "order_during": float(during[:, 3].max()) if len(during) else 0.0,
    }


_PHASES = ("during_mean", "during_lowest", "during_worst_agent", "after_mean", "after_worst_agent", "order_during")
_NUMBERS = (*_PHASES, "left_out", "bytes", "cpu_seconds", "cpu_during")
_PROTOCOLS = ("exact-diffusion", "shared-statistics")


class _Group(NamedTuple):
    """What a row of the table is about."""

    partition: str
    protocol: str
    attack: str
    screened: bool

    @property
    def label(self) -> str:
        return "-".join([*self[:3], "screened" if self.screened else "open"])


def run(config: Config, session: Session) -> Findings:
    """One attack on one protocol, and the same network without an attack."""
    return _compared(config, session, [config.protocol], [config.attack])


def table(config: Config, session: Session) -> Findings:
    """Every attack on two protocols that screen.

    Networks without screening are computed only for the attack in the settings.
    """
    return _compared(config, session, _PROTOCOLS, list(attacks()), believed=(_CALM, config.attack))


def _compared(
    config: Config, session: Session, protocols: Sequence[str], names: Sequence[str], *, believed: Sequence[str] | None = None
) -> Findings:
    told = dict.fromkeys([_CALM, *names])
    groups = [
        _Group(*each)
        for each in itertools.product([config.partition], protocols, told, (False, True))
        if each[-1] or believed is None or each[-2] in believed
    ]
    cells = {group.label: Cell(cell, dataclasses.replace(config, **group._asdict())) for group in groups}
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    found = {group: done[group.label] for group in groups if done[group.label]}
    rows = [{**group._asdict(), **means(lines, _NUMBERS)} for group, lines in found.items()]
    summary: dict[str, Any] = {"agents": config.agents, "bad": config.bad, "seeds": config.seeds}
    for row, group in zip(rows, found, strict=True):
        key = group.label.replace("-", "_")
        summary |= {f"{key}_during": row["during_mean"], f"{key}_after": row["after_mean"]}
    figures = {}
    if rows:
        figures["figure"] = _figure(config, found) if len(protocols) == 1 else _overview(config, rows)
    flat = [{k: v for k, v in line.items() if k != "curve"} for lines in found.values() for line in lines]
    tables = {"losses": _losses(rows), "table": rows, "cells": flat}
    printed = ("losses", "table")
    return Findings(summary=summary, tables=tables, figures=figures, paragraphs=_PARAGRAPHS, printed=printed)


def _losses(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The loss of accuracy of honest agents, compared with the same network without attack and screening."""
    calm = {(row["partition"], row["protocol"]): row for row in rows if row["attack"] == _CALM and not row["screened"]}
    out = []
    for row in rows:
        peace = calm.get((row["partition"], row["protocol"]))
        if peace is None or row is peace:
            continue
        out.append(
            {
                **{key: row[key] for key in ("partition", "protocol", "attack", "screened")},
                **{f"{when}_points": 100 * (row[f"{when}_mean"] - peace[f"{when}_mean"]) for when in ("during", "after")},
                "lowest_points": 100 * (row["during_lowest"] - peace["during_lowest"]),
                "order_ratio": row["order_during"] / max(peace["order_during"], 1.0),
                "rate_ratio": peace["cpu_during"] / max(row["cpu_during"], 1e-9),
            }
        )
    return out


_PARAGRAPHS = (
    "Held-out accuracy of honest agents: the mean over agents, averaged over the rounds of the attack "
    "(`during_mean`), the lowest such mean (`during_lowest`), the worst agent in any of these rounds, and the same at "
    "the end. `left_out` counts the messages that screening rejected, `bytes` the total traffic, and `cpu_during` the "
    "CPU seconds of the rounds under attack.",
    "`losses` compares with the same network without an attack and without screening: the difference in percentage "
    "points of accuracy, the ratio of the honest agents' model orders during the attack, and the ratio of rounds per "
    "second of CPU time.",
)


def _figure(config: Config, found: Mapping[_Group, Sequence[Mapping[str, Any]]]) -> Figure:
    figure, axes = panel("round", "held-out accuracy of honest agents, %")
    for index, ((_, _, attack, screened), lines) in enumerate(found.items()):
        length = min(len(line["curve"]) for line in lines)
        curve = np.mean([line["curve"][:length] for line in lines], axis=0).reshape(-1, 4)
        label = f"{'no attack' if attack == _CALM else attack}, {'with screening' if screened else 'without screening'}"
        axes.plot(curve[:, 0], 100 * curve[:, 1], **{**style_of(index), "marker": ""}, label=label)
    axes.axvspan(config.first, config.last, color="0.9", zorder=0, label=f"{config.bad} of {config.agents} agents are bad")
    axes.legend(fontsize=9)
    axes.set_title(f"{config.attack} with {config.protocol}, {config.partition}")
    return figure


def _overview(config: Config, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy during the attack and at the end: one panel for each protocol."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, len(_PROTOCOLS), sharey=True)
    names = list(dict.fromkeys(row["attack"] for row in rows))
    kinds_of_mark = (
        ("during_mean", False, "x", COLORS[5], "during, without screening"),
        ("during_mean", True, "o", COLORS[0], "during, with screening"),
        ("after_mean", True, "+", COLORS[2], "at the end, with screening"),
    )
    for axes, protocol in zip(panels, _PROTOCOLS, strict=True):
        mine = [row for row in rows if row["protocol"] == protocol]
        for quantity, screened, marker, color, label in kinds_of_mark:
            chosen = [row for row in mine if row["screened"] == screened]
            at = [names.index(row["attack"]) for row in chosen]
            axes.plot(at, [100 * row[quantity] for row in chosen], marker, color=color, fillstyle="none", label=label)
        axes.set_xticks(
            range(len(names)), ["no attack" if name == _CALM else name for name in names], rotation=40, ha="right"
        )
        axes.set_title(protocol)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy of honest agents, %")
    panels[0].legend(fontsize=8, loc="center right")
    bad = f"{config.bad} of {config.agents} agents are bad in rounds {config.first} to {config.last}"
    figure.suptitle(f"{bad}; {config.partition}")
    return figure


_ABOUT = "Byzantine agents: the accuracy of honest agents with and without screening (--all: every attack)"
EXPERIMENT = Experiment(
    name="byzantine", about=_ABOUT, config=Config, run=run, table=table, swept=("protocol", "attack", "screened")
)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)

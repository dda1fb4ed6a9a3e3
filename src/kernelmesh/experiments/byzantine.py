"""Agents that lie: what becomes of the honest ones, with and without screening."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import ArrayStream, Faults, Screening, register, simulate
from kernelmesh.errors import Diverged, InvalidArgument
from kernelmesh.experiments import Cell, Experiment, Findings, Session, heterogeneous, means
from kernelmesh.experiments.mixture import Task
from kernelmesh.experiments.protocols import ProtocolName
from kernelmesh.experiments.settings import Count, Index
from kernelmesh.registry import kebab, kinds
from kernelmesh.report import panel, style_of
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
    """One attack, with everybody believed and with screening; `--all` has every attack and three protocols."""

    protocol: ProtocolName = "shared-statistics"
    partition: Annotated[str, one_of("identical", "two-class", "one-class")] = "two-class"
    attack: Annotated[str, _check_attack] = setting("sign-flip", doc="what bad agents do; none: nothing")
    bad: Index = setting(4, doc="bad agents, spread evenly over the network")
    first: Count = setting(101, doc="the round in which the attack begins")
    last: Count = setting(200, doc="the round in which it ends")
    rounds: Count = setting(400, doc="rounds in all")
    screened: Annotated[bool, flag] = setting(False, doc="set by the experiment itself")
    seeds: Count = setting(1, doc="seeds that every number is the mean over")
    measure_every: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.first <= self.last < self.rounds:
            rule = f"be from `first` = {self.first} on, and below `rounds` = {self.rounds}"
            raise InvalidArgument(self.owner, "last", rule, self.last)
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
    curve, left_out, began, ended = [], 0, time.process_time(), "complete"
    try:
        for now in simulate(agent, task.graph, _streams(config, task), faults=faults):
            left_out += sum(len(info.left_out) for i, info in enumerate(now.infos) if info is not None and i in honest)
            if now.number % config.measure_every == 0:
                functions = [now.functions[i] for i in honest]
                right = [(f(task.held_points).argmax(axis=1) == task.held_labels).mean() for f in functions]
                order = float(np.mean([f.order for f in functions]))
                curve.append([now.number, float(np.mean(right)), float(min(right)), order])
    except Diverged:
        ended = "diverged"
    return {
        "attack": config.attack,
        "protocol": config.protocol,
        "screened": config.screened,
        "seed": config.seed,
        "ended": ended,
        "left_out": left_out,
        "cpu_seconds": time.process_time() - began,
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
_NUMBERS = (*_PHASES, "left_out", "cpu_seconds")
_PROTOCOLS = ("shared-statistics", "exact-diffusion", "diffusion")


def run(config: Config, session: Session) -> Findings:
    """One attack on one protocol, and the same network in peace."""
    return _compared(config, session, [config.protocol], [config.attack])


def table(config: Config, session: Session) -> Findings:
    """Every attack on three protocols."""
    return _compared(config, session, _PROTOCOLS, list(attacks()))


def _compared(config: Config, session: Session, protocols: Sequence[str], names: Sequence[str]) -> Findings:
    groups = {
        (protocol, attack, screened): f"{protocol}-{attack}-{'screened' if screened else 'open'}"
        for protocol in protocols
        for attack in dict.fromkeys([_CALM, *names])
        for screened in (False, True)
    }
    cells = {
        label: Cell(cell, dataclasses.replace(config, protocol=protocol, attack=attack, screened=screened))
        for (protocol, attack, screened), label in groups.items()
    }
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    rows = [
        {"protocol": protocol, "attack": attack, "screened": screened, **means(lines, _NUMBERS)}
        for (protocol, attack, screened), label in groups.items()
        if (lines := done[label])
    ]
    summary: dict[str, Any] = {
        "agents": config.agents,
        "bad": config.bad,
        "partition": config.partition,
        "seeds": config.seeds,
    }
    for row in rows:
        key = f"{row['protocol']}_{row['attack']}_{'screened' if row['screened'] else 'open'}".replace("-", "_")
        summary |= {f"{key}_during": row["during_mean"], f"{key}_after": row["after_mean"]}
    figures = {}
    if len(protocols) == 1 and rows:
        figures["figure"] = _figure(config, {group: done[label] for group, label in groups.items() if done[label]})
    flat = [{k: v for k, v in line.items() if k != "curve"} for label in groups.values() for line in done[label]]
    return Findings(summary=summary, tables={"table": rows, "cells": flat}, figures=figures, paragraphs=_PARAGRAPHS)


_PARAGRAPHS = (
    "Held-out accuracy of honest agents: the mean over agents, averaged over the rounds of the attack (`during_mean`), the "
    "lowest such mean (`during_lowest`), the worst agent in any of these rounds, and the same at the end. `left_out` "
    "counts messages that honest agents did not believe.",
)


def _figure(config: Config, found: Mapping[tuple[str, str, bool], Sequence[Mapping[str, Any]]]) -> Figure:
    figure, axes = panel("round", "held-out accuracy of honest agents, %")
    for index, ((_, attack, screened), lines) in enumerate(found.items()):
        length = min(len(line["curve"]) for line in lines)
        curve = np.mean([line["curve"][:length] for line in lines], axis=0).reshape(-1, 4)
        label = f"{'in peace' if attack == _CALM else attack}, {'screened' if screened else 'everybody believed'}"
        axes.plot(curve[:, 0], 100 * curve[:, 1], **{**style_of(index), "marker": ""}, label=label)
    axes.axvspan(config.first, config.last, color="0.9", zorder=0, label=f"{config.bad} of {config.agents} agents are bad")
    axes.legend(fontsize=9)
    axes.set_title(f"{config.attack} with {config.protocol}, {config.partition}")
    return figure


_ABOUT = "agents that lie: what becomes of the honest ones, with and without screening (--all: every attack)"
EXPERIMENT = Experiment(
    name="byzantine", about=_ABOUT, config=Config, run=run, table=table, swept=("protocol", "attack", "screened")
)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)

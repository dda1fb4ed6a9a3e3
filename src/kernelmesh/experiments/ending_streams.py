"""Streams that end at different times: how much a network forgets about ended streams, with and without replay."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import register
from kernelmesh.experiments import Cell, Experiment, Findings, Network, Session, heterogeneous, learn, means
from kernelmesh.experiments.mixture import Task
from kernelmesh.experiments.protocols import takes_every
from kernelmesh.experiments.settings import Count, Index
from kernelmesh.report import panel, style_of
from kernelmesh.schema import setting
from kernelmesh.streams import StreamSlice

__all__ = ["EXPERIMENT", "Config", "cell"]

# Protocols with rules; the last needs no replay.
_LEARNERS = (
    ("exact-diffusion", "gradient"),
    ("exact-diffusion", "averaged"),
    ("diffusion", "gradient"),
    ("diffusion", "averaged"),
    ("hilbert", "gradient"),
    ("shared-statistics", "landmarks"),
)

_DRAWN = (*_LEARNERS[:3], _LEARNERS[-1])  # more lines would hide each other


@dataclass(frozen=True, kw_only=True)
class Config(heterogeneous.Config, owner="ending-streams"):
    """One class per agent; the streams of one class after the other end, the first after half of the rounds."""

    replay: Index = setting(256, doc="samples that each agent keeps for replay; compared with 0")
    seeds: Count = setting(3, doc="number of seeds to average over")


def network(config: Config) -> tuple[Network, int]:
    """A network whose streams end one class after the other, and the last round before the first of them ends."""
    task = Task.draw(config)
    classes, rounds, every = task.mixture.classes, len(task.streams[0]), config.measure_every
    shares = [0.5 + 0.5 * c / (classes - 1) for c in range(classes)]
    ends = [rounds if share == 1.0 else max(int(rounds * share) // every * every, 1) for share in shares]
    streams = [StreamSlice(part.stream, 0, ends[i % classes]) for i, part in enumerate(task.streams)]
    whole = task.network()
    return dataclasses.replace(whole, agent=dataclasses.replace(whole.agent, replay=config.replay), streams=streams), ends[0]


def cell(config: Config) -> Mapping[str, Any]:
    """What a network knew before the first stream ended, what it knew in the end, and the way there."""
    drawn, first = network(config)
    trial = learn(drawn)
    before = [line for line in trial.record if line.round <= first][-1]
    path = [[line.round / drawn.rounds, line.score_worst] for line in trial.record]
    last = trial.last
    return {
        **{name: getattr(config, name) for name in ("protocol", "rule", "replay", "seed")},
        **trial.outcome.row(),
        "worst_before": before.score_worst,
        "worst_lowest": min(line.score_worst for line in trial.record if line.round >= first),
        "worst_end": last.score_worst,
        "mean_end": last.score_mean,
        "gained": last.score_worst - before.score_worst,
        "model_order_mean": last.order_mean,
        "floats_per_sample": last.floats_per_sample,
        "bytes_per_sample": last.bytes_per_sample,
        "path": path,
    }


def run(config: Config, session: Session) -> Findings:
    """Every learner with and without replay, over the seeds."""
    groups = {
        (protocol, rule, replay): dataclasses.replace(
            config, protocol=protocol, rule=rule, replay=replay, every=config.every if takes_every(protocol) else 1
        )
        for protocol, rule in _LEARNERS
        for replay in dict.fromkeys((0, 0 if protocol == "shared-statistics" else config.replay))
    }
    names = {group: "-".join(map(str, group)) for group in groups}
    cells = {names[group]: Cell(cell, settings) for group, settings in groups.items()}
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    table = [
        {
            **dict(zip(("protocol", "rule", "replay"), group, strict=True)),
            **means(complete, _NUMBERS),
            "gained_least": min(row["gained"] for row in complete),
            "diverged": len(rows) - len(complete),
        }
        for group in groups
        if (rows := done[names[group]]) and (complete := [row for row in rows if row["complete"]])
    ]
    gained = {f"{row['protocol']}_{row['rule']}_{row['replay']}_gained".replace("-", "_"): row["gained"] for row in table}
    lines = {group: rows for group in groups if (rows := done[names[group]]) and group[:2] in _DRAWN}
    return Findings(
        summary={"seeds": config.seeds, "replay": config.replay, **gained},
        tables={"table": table, "cells": [_without_path(row) for rows in done.values() for row in rows]},
        figures={"figure": _figure(lines, config)} if lines else {},
        paragraphs=_PARAGRAPHS,
    )


_COSTS = ("model_order_mean", "floats_per_sample", "bytes_per_sample")
_NUMBERS = ("worst_before", "worst_lowest", "worst_end", "gained", "mean_end", *_COSTS)
_PARAGRAPHS = (
    "Means over the seeds. `worst_before` is the accuracy of the worst agent just before the first stream ends, "
    "`worst_end` when the last one ends, and `worst_lowest` the lowest measured in between. `gained` is the "
    "difference, and `gained_least` that of the seed with the smallest difference. `floats_per_sample` and "
    "`bytes_per_sample` count samples once, whether they are replayed or not.",
)


def _without_path(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "path"}


_FROM = 0.25


def _figure(groups: Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]], config: Config) -> Figure:
    figure, axes = panel("share of the rounds", "held-out accuracy of the worst agent, %", size=(8, 5))
    kinds = list(dict.fromkeys(group[:2] for group in groups))
    for (protocol, rule, replay), rows in groups.items():
        # of the first seed: means would hide how fast it goes; what was learned in the beginning is another story
        path = [(at, worst) for at, worst in rows[0]["path"] if at >= _FROM]
        style = {**style_of(kinds.index((protocol, rule))), "linestyle": "-" if replay else ":", "markevery": 4}
        label = f"{protocol}, {rule}, replay {replay}"
        axes.plot([at for at, _ in path], [100 * worst for _, worst in path], **style, label=label)
    axes.axvline(0.5, color="0.4", linewidth=1.0, linestyle="--")
    axes.legend(fontsize=8, loc="lower left")
    axes.set_title(f"From the dashed line on, streams end one class after the other (seed {config.seed})")
    return figure


_ABOUT = "streams that end at different times: how much a network forgets with and without replay"
EXPERIMENT = Experiment(name="ending-streams", about=_ABOUT, config=Config, run=run, swept=("protocol", "rule"))
register("experiment", EXPERIMENT, name=EXPERIMENT.name)

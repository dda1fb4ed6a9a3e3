"""Runs one experiment over a grid of settings and several seeds, with one table and one figure."""

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import InvalidArgument
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.catalog import experiments
from kernelmesh_experiments.cells import Cell, Pool
from kernelmesh_experiments.outcome import Incomplete
from kernelmesh_experiments.report import Findings, panel, style_of
from kernelmesh_experiments.settings import did_you_mean

__all__ = ["Grid", "sweep"]

# What the figure shows unless told otherwise: the first of these that the experiment reports.
_SHOWN = ("accuracy_mean", "error_mean", "objective")
# What says which cell it is, besides its settings, and is no measure of it.
_ALWAYS = ("experiment", "remark", "outcome", "complete")
# Measures of which more, or less, is better, by how their names begin; points are not ranked by others.
_MORE, _LESS = ("accuracy",), ("error", "objective", "loss", "disagreement")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The settings of a sweep: every combination of the values of each axis, with each of some seeds.

    >>> grid = Grid(experiment="gmm-logistic", axes={"step_size": (1.0, 3.0), "agents": (4, 8)}, seeds=2)
    >>> len(grid.points), grid.points[1]
    (4, {'step_size': 1.0, 'agents': 8})
    """

    experiment: str
    axes: Mapping[str, Sequence[Any]]
    seeds: int = 1
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings that are the same in all cells."""
    show: str = ""
    """The column that the figure draws; "" for the experiment's score."""

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if name not in self.settings:
                listed = f"`kernelmesh show {self.experiment}` lists its settings"
                remedy = "; ".join(filter(None, (did_you_mean(name, self.settings), listed)))
                raise InvalidArgument("sweep", "--grid", f"name settings of {self.experiment}", name, remedy=remedy)
            if name in self.fixed:
                raise InvalidArgument("sweep", f"--set {name}", "be omitted if it is in --grid", self.fixed[name])
            if name == "seed":
                remedy = "use --seeds N for N seeds, starting from --set seed=…"
                raise InvalidArgument("sweep", "--grid", "be over settings other than the seed", name, remedy=remedy)
            if not values or len(set(values)) < len(values):
                raise InvalidArgument("sweep", f"--grid {name}", "have distinct values", tuple(values))
        if self.seeds < 1:
            raise InvalidArgument("sweep", "--seeds", "be at least 1", self.seeds)

    @property
    def _kind(self) -> Experiment:
        known = experiments()
        if self.experiment not in known:
            remedy = did_you_mean(self.experiment, known)
            raise InvalidArgument("sweep", "NAME", f"be one of {', '.join(known)}", self.experiment, remedy=remedy)
        return known[self.experiment]

    @property
    def settings(self) -> list[str]:
        """The names of all settings of the experiment."""
        return [field.name for field in dataclasses.fields(self._kind.config)]

    @property
    def points(self) -> list[dict[str, Any]]:
        """The combinations, the last axis fastest."""
        return [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]

    def configs(self) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], str]]:
        """The settings of each cell, and what is wrong with those that cannot be; by (number of the point, seed).

        Values that go together with others are kept; one that goes with none is an error of the whole sweep.
        """
        first = self.fixed.get("seed", 0)
        found: dict[tuple[int, int], Any] = {}
        wrong: dict[tuple[int, int], str] = {}
        errors: dict[int, Exception] = {}
        for number, point in enumerate(self.points):
            for seed in range(first, first + self.seeds):
                try:
                    found[number, seed] = self._kind.config(**{**self.fixed, **point, "seed": seed})
                except (TypeError, ValueError) as error:
                    wrong[number, seed], errors[number] = str(error), error
        for name, values in self.axes.items():
            for value in values:
                numbers = [number for number, point in enumerate(self.points) if point[name] == value]
                if all(number in errors for number in numbers):
                    raise errors[numbers[0]]
        if not found and errors:
            raise errors[0]
        return found, wrong


def _name(point: Mapping[str, Any], seed: int) -> str:
    parts = (f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in point.items())
    return "_".join([*parts, f"seed={seed}"]).replace("/", "-")


class _Inner(Session):
    """The session of one cell: it computes what it needs in the process that it has, without processes of its own."""

    def compute(self, cells: Mapping[str, Cell], **_: Any) -> dict[str, dict[str, Any]]:
        return {name: dict(cell.function(cell.settings)) for name, cell in cells.items()}


def cell(settings: tuple[str, Any]) -> dict[str, Any]:
    """One run of the experiment: the flat numbers of its summary."""
    name, config = settings
    with tempfile.TemporaryDirectory() as folder:
        session = _Inner(Path(folder))
        summary = experiments()[name].run(config, session).summary
        return {**session.outcome.row(), **{key: _plain(value) for key, value in summary.items()}}


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    return value.item() if isinstance(value, np.generic) else value


def sweep(pool: Pool | None = None) -> Experiment:
    """The experiment whose settings are a `Grid`; `pool` starts the workers, by default one process per core."""

    def job(grid: Grid, session: Session) -> Findings:
        return _sweep(grid, session, pool)

    return Experiment(name="sweep", about="an experiment over a grid of settings", config=Grid, run=job)


def _sweep(grid: Grid, session: Session, pool: Pool | None) -> Findings:
    configs, wrong = grid.configs()
    points = grid.points
    names = {key: _name(points[key[0]], key[1]) for key in (*configs, *wrong)}
    failures: dict[str, str] = {names[key]: reason for key, reason in wrong.items()}
    cells = {names[key]: Cell(cell, (grid.experiment, config)) for key, config in configs.items()}
    done = session.compute(cells, failures=failures, pool=pool)
    if failures and session.complete:
        session.outcome = Incomplete(done=len(done), total=len(names), reason=next(iter(failures.values())))
    rows = [
        {**points[number], "seed": seed, **done[name], "failed": ""}
        if (name := names[number, seed]) in done
        else {**points[number], "seed": seed, "failed": failures[name]}
        for number, seed in sorted(names)
        if names[number, seed] in done or names[number, seed] in failures
    ]
    measures = _measures(grid, list(done.values()))
    shown = _shown(grid, measures)
    table = [_row(grid, point, [row for row in rows if _at(row, point)], measures) for point in points]
    summary = {"of": grid.experiment, "points": len(points), "seeds": grid.seeds, "cells": len(names)}
    summary |= {"failed": len(failures), **_best(grid, table, shown)}
    figures = {"figure": _draw(grid, table, shown)} if shown else {}
    return Findings(summary=summary, tables={"table": table, "cells": _even(rows)}, figures=figures)


def _at(row: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    return all(row[name] == value for name, value in point.items())


def _even(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with the same columns, those of failed cells empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in columns} for row in rows]


def _measures(grid: Grid, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that are numbers in every cell and are no settings."""
    names = dict.fromkeys(name for result in results for name in result)
    given = {*_ALWAYS, *grid.settings}

    def number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    return [name for name in names if name not in given and all(number(result.get(name)) for result in results)]


def _shown(grid: Grid, measures: Sequence[str]) -> str:
    if not measures:
        return ""
    if not grid.show:
        return next((name for name in _SHOWN if name in measures), measures[0])
    if grid.show not in measures:
        remedy = did_you_mean(grid.show, measures)
        raise InvalidArgument("sweep", "--show", f"be one of {', '.join(measures)}", grid.show, remedy=remedy)
    return grid.show


def _row(grid: Grid, point: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of one point."""
    good = [row for row in rows if not row["failed"]]
    out: dict[str, Any] = {**point, "seeds": len(good), "failed": len(rows) - len(good)}
    for name in measures:
        values = np.array([row[name] for row in good], dtype=float)
        out[name] = float(values.mean()) if len(values) else math.nan
        out[f"{name}_std"] = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return out


def _best(grid: Grid, table: Sequence[Mapping[str, Any]], shown: str) -> dict[str, Any]:
    """The point with the best score, if it is known whether more is better or less is."""
    rows = [row for row in table if shown and not math.isnan(row[shown])]
    if not rows or not shown.startswith(_MORE + _LESS):
        return {}
    best = max(rows, key=lambda row: row[shown] if shown.startswith(_MORE) else -row[shown])
    return {f"best_{name}": best[name] for name in (*grid.axes, shown)}


def _draw(grid: Grid, table: Sequence[Mapping[str, Any]], shown: str) -> Figure:
    """The measure against the first axis of numbers, one line for each combination of the others."""
    numeric = [name for name, values in grid.axes.items() if all(_is_number(value) for value in values)]
    axis = next((name for name in numeric if len(grid.axes[name]) > 1), next(iter(grid.axes), ""))
    others = [name for name in grid.axes if name != axis]
    spread = [float(value) for value in grid.axes.get(axis, ())] if axis in numeric else []
    logarithmic = "x" if spread and min(spread) > 0 and max(spread) > 20 * min(spread) else ""
    figure, axes = panel(
        axis or "run", f"{shown}, mean over {grid.seeds} seed{'s' * (grid.seeds > 1)}", logarithmic=logarithmic
    )
    lines: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in table:
        lines.setdefault(tuple(row[name] for name in others), []).append(row)
    for index, (key, rows) in enumerate(lines.items()):
        ordered = sorted(rows, key=lambda row: row[axis]) if axis in numeric else rows
        across = [row[axis] if axis in numeric else str(row.get(axis, "")) for row in ordered]
        spans = [0.0 if math.isnan(row[f"{shown}_std"]) else row[f"{shown}_std"] for row in ordered]
        label = ", ".join(f"{name}={value}" for name, value in zip(others, key, strict=True)) or None
        axes.errorbar(across, [row[shown] for row in ordered], yerr=spans, capsize=3, label=label, **style_of(index))
    if others:
        axes.legend(fontsize="small")
    axes.set_title(f"{grid.experiment}: bars are standard deviations over seeds", fontsize="medium")
    return figure


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

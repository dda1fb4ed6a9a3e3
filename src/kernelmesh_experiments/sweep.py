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
from kernelmesh_experiments.events import Incomplete
from kernelmesh_experiments.report import Findings, panel, style_of
from kernelmesh_experiments.settings import one_of

__all__ = ["Grid", "sweep"]

# What the figure shows unless told otherwise: the first of these that the experiment reports.
_SHOWN = ("accuracy_mean", "error_mean", "objective")
# What says which cell it is, besides its settings, and is no measure of it.
_ALWAYS = ("experiment", "remark", "outcome", "complete")


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
            if name in self.fixed:
                raise InvalidArgument("sweep", f"--set {name}", "be omitted if it is in --grid", self.fixed[name])
            if name == "seed":
                remedy = "use --seeds N for N seeds, starting from --set seed=…"
                raise InvalidArgument("sweep", "--grid", "be over settings other than the seed", name, remedy=remedy)
            if not values or len(set(values)) < len(values):
                raise InvalidArgument("sweep", f"--grid {name}", "have distinct values", tuple(values))

    @property
    def _kind(self) -> type[Any]:
        known = experiments()
        one_of(*known)("sweep", "NAME", self.experiment)
        return known[self.experiment].config

    @property
    def settings(self) -> list[str]:
        """The names of all settings of the experiment."""
        return [field.name for field in dataclasses.fields(self._kind)]

    @property
    def points(self) -> list[dict[str, Any]]:
        """The combinations, the last axis fastest."""
        return [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]

    def configs(self) -> dict[tuple[int, int], Any]:
        """The settings of each cell, or the error of those that cannot be; by (number of the point, seed).

        Values that go together with others are kept; one that goes with none is an error of the whole sweep.
        """
        first = self.fixed.get("seed", 0)
        found: dict[tuple[int, int], Any] = {}
        for number, point in enumerate(self.points):
            for seed in range(first, first + self.seeds):
                try:
                    found[number, seed] = self._kind(**{**self.fixed, **point, "seed": seed})
                except (TypeError, ValueError) as error:
                    found[number, seed] = error
        for name, values in self.axes.items():
            for value in values:
                made = [found[number, first] for number, point in enumerate(self.points) if point[name] == value]
                if all(isinstance(config, Exception) for config in made):
                    raise made[0]
        return found


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
    points, configs = grid.points, grid.configs()
    names = {key: _name(points[key[0]], key[1]) for key in configs}
    failures = {names[key]: str(found) for key, found in configs.items() if isinstance(found, Exception)}
    cells = {names[key]: Cell(cell, (grid.experiment, found)) for key, found in configs.items() if names[key] not in failures}
    done = session.compute(cells, failures=failures, pool=pool)
    if failures and session.complete:
        session.outcome = Incomplete(done=len(done), total=len(names), reason=next(iter(failures.values())))
    rows: dict[int, list[dict[str, Any]]] = {number: [] for number in range(len(points))}
    for (number, seed), name in names.items():
        if name in done or name in failures:
            found = {"seed": seed, **done.get(name, {}), "failed": failures.get(name, "")}
            rows[number].append({**points[number], **found})
    measures = _measures(grid, list(done.values()))
    shown = _shown(grid, measures)
    table = [_row(point, rows[number], measures) for number, point in enumerate(points)]
    summary = {"of": grid.experiment, "points": len(points), "seeds": grid.seeds, "cells": len(names)}
    summary |= {"failed": len(failures)}
    figures = {"figure": _draw(grid, table, shown)} if shown else {}
    each = _even([row for lines in rows.values() for row in lines])
    return Findings(summary=summary, tables={"table": table, "cells": each}, figures=figures)


def _even(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with the same columns, those of failed cells empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in columns} for row in rows]


def _measures(grid: Grid, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that are numbers in every cell and are no settings."""
    names = dict.fromkeys(name for result in results for name in result)
    given = {*_ALWAYS, *grid.settings}
    return [name for name in names if name not in given and all(_is_number(result.get(name)) for result in results)]


def _shown(grid: Grid, measures: Sequence[str]) -> str:
    if grid.show and measures:
        one_of(*measures)("sweep", "--show", grid.show)
        return grid.show
    return next((name for name in _SHOWN if name in measures), next(iter(measures), ""))


def _row(point: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of one point."""
    good = [row for row in rows if not row["failed"]]
    out: dict[str, Any] = {**point, "seeds": len(good), "failed": len(rows) - len(good)}
    for name in measures:
        values = np.array([row[name] for row in good], dtype=float)
        out[name] = float(values.mean()) if len(values) else math.nan
        out[f"{name}_std"] = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return out


def _draw(grid: Grid, table: Sequence[Mapping[str, Any]], shown: str) -> Figure:
    """The measure against the first axis of numbers, one line for each combination of the others."""
    numeric = [name for name, values in grid.axes.items() if len(values) > 1 and all(map(_is_number, values))]
    axis = next(iter((*numeric, *grid.axes)))
    others = [name for name in grid.axes if name != axis]
    figure, axes = panel(axis, f"{shown}, mean over {grid.seeds} seed{'s' * (grid.seeds > 1)}")
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(table, key=lambda row: row[axis]) if axis in numeric else table:
        lines.setdefault(", ".join(f"{name}={row[name]}" for name in others), []).append(row)
    for index, (label, rows) in enumerate(lines.items()):
        across = [row[axis] if axis in numeric else str(row[axis]) for row in rows]
        spans = np.nan_to_num([row[f"{shown}_std"] for row in rows])
        axes.errorbar(across, [row[shown] for row in rows], yerr=spans, capsize=3, label=label, **style_of(index))
    if others:
        axes.legend(fontsize="small")
    axes.set_title(f"{grid.experiment}: bars are standard deviations over seeds", fontsize="medium")
    return figure


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

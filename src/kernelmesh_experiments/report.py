"""Writes the results of a run to a folder: tables, figures and settings."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from kernelmesh import Function, Logistic, Measures
from kernelmesh_experiments.settings import Floats, Ints

__all__ = ["COLORS", "Findings", "draw_decision_regions", "draw_path", "draw_samples", "panel", "style_of", "write_report"]

# Okabe and Ito's colors, which differ for every kind of color vision and in gray print
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
# Lines omit yellow, which is hard to see, and add four darker colors by Paul Tol and a brown.
_LINES = (*COLORS[:6], COLORS[7], "#882255", "#44AA99", "#999933", "#332288", "#8B5A2B")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
_MARKERS = "osD^vPX*<>ph"


def style_of(index: int) -> dict[str, Any]:
    """Color, dashes and marker of the n-th line of a figure; twelve lines are distinct, even without color."""
    n = index % len(_LINES)
    return {"color": _LINES[n], "linestyle": _DASHES[n % len(_DASHES)], "marker": _MARKERS[n], "markersize": 5}


def panel(x: str, y: str, *, size: tuple[float, float] = (7, 5), logarithmic: str = "") -> tuple[Figure, Axes]:
    """A figure with one panel; `logarithmic` lists its logarithmic axes."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in logarithmic})
    axes.grid(alpha=0.3, which="both")
    return figure, axes


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """The findings of an experiment: named numbers, tables, figures, and paragraphs that explain them."""

    summary: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Each becomes a CSV file; that with the name "table" is also printed on the page."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    paragraphs: Sequence[str] = ()
    """For the page: how to interpret the numbers."""


def write_report(folder: Path, config: Mapping[str, Any], summary: Mapping[str, Any], findings: Findings) -> list[Path]:
    """Write summary, settings, explanations, tables and figures; returns the paths of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").unlink(missing_ok=True)  # the page of an earlier run; `kernelmesh report` writes a new one
    documents = {
        "summary": dict(summary),
        "config": {"experiment": summary["experiment"], **config},
        "report": {"paragraphs": list(findings.paragraphs), "printed": ["table"]},
    }
    files = [folder / f"{name}.json" for name in documents]
    for file, content in zip(files, documents.values(), strict=True):
        file.write_text(json.dumps(content, indent=2) + "\n")
    for name, rows in findings.tables.items():
        files.append(folder / f"{name}.csv")
        with files[-1].open("w", newline="") as opened:
            writer = csv.DictWriter(opened, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
    for name, figure in findings.figures.items():
        for suffix in ("png", "svg"):
            files.append(folder / f"{name}.{suffix}")
            figure.savefig(files[-1], dpi=150)
    return files


def draw_path(axes: Axes, record: Sequence[Measures], quantity: str, *, label: str) -> None:
    """Plot one quantity of the record over the samples that each agent has seen."""
    axes.plot([line.samples for line in record], [getattr(line, quantity) for line in record], color=COLORS[0])
    axes.set(xlabel="samples per agent", ylabel=label)
    axes.grid(alpha=0.3)
    axes.margins(x=0.01)


def draw_decision_regions(axes: Axes, function: Function, points: Floats, labels: Ints) -> None:
    """Plot one agent's decision regions in the plane, with contours of 50 % and 90 % confidence and its dictionary."""
    low, high = points.min(axis=0) - 0.3, points.max(axis=0) + 0.3
    across, up = (np.linspace(a, b, 240) for a, b in zip(low, high, strict=True))
    grid = np.stack(np.meshgrid(across, up), axis=-1)
    odds = Logistic().probabilities(function(grid.reshape(-1, 2)))
    best = odds.argmax(axis=1).reshape(grid.shape[:2])
    classes = function.outputs
    palette = [COLORS[c % len(COLORS)] for c in range(classes)]
    extent = (low[0], high[0], low[1], high[1])
    colored: dict[str, Any] = {"cmap": ListedColormap(palette), "vmin": 0, "vmax": classes - 1, "alpha": 0.35}
    axes.imshow(best, origin="lower", extent=extent, aspect="auto", **colored)
    for c in range(classes):
        axes.contour(across, up, best == c, levels=[0.5], colors="black", linewidths=0.9)
    sure = odds.max(axis=1).reshape(grid.shape[:2])
    axes.contour(across, up, sure, levels=[0.5, 0.9], colors="black", linestyles=["dotted", "dashed"], linewidths=0.6)
    draw_samples(axes, points[:1500], labels[:1500], legend=False)
    dots: dict[str, Any] = {"s": 34, "facecolor": "black", "edgecolor": "white", "linewidths": 0.8}
    axes.scatter(*function.points.T, **dots, label=f"dictionary ({function.order})")
    axes.legend(loc="upper right", framealpha=0.9)


def draw_samples(axes: Axes, points: Floats, labels: Ints, *, legend: bool = True) -> None:
    """Plot points in the plane, colored by class."""
    for c in np.unique(labels):
        dots: dict[str, Any] = {"s": 3, "color": COLORS[c % len(COLORS)], "linewidths": 0, "rasterized": True}
        axes.scatter(*points[labels == c].T, **dots, label=f"class {c}" if legend else None)
    axes.set(xlabel="$x_1$", ylabel="$x_2$")
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), markerscale=4)

"""Numbers → tables and pictures, written to a folder. Nothing is computed here that a run has not measured."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from kernelmesh.checks import Floats, Ints
from kernelmesh.maths.expansion import Expansion
from kernelmesh.maths.losses import Logistic
from kernelmesh.metrics import Measures

__all__ = ["Report", "draw_decision_regions", "draw_path"]

# Okabe and Ito's colours, which differ for every kind of colour vision and in grey print
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


@dataclass(frozen=True, eq=False)
class Report:
    """What a run leaves behind: a summary, its record, the settings that repeat it, and figures."""

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    record: Sequence[Measures]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    remark: str = ""
    """What a reader must know first: that the run was interrupted, or diverged and why."""

    def write(self, folder: Path) -> list[Path]:
        """Write everything; returns the files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "summary.json", folder / "config.json", folder / "rounds.csv"]
        files[0].write_text(json.dumps(dict(self.summary), indent=2) + "\n")
        files[1].write_text(json.dumps(dict(self.config), indent=2) + "\n")
        with files[2].open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(column.name for column in dataclasses.fields(Measures))
            writer.writerows(dataclasses.astuple(line) for line in self.record)
        for name, figure in self.figures.items():
            for suffix in ("png", "svg"):
                files.append(folder / f"{name}.{suffix}")
                figure.savefig(files[-1], dpi=150)
        return files


def draw_path(axes: Axes, record: Sequence[Measures], quantity: str, *, label: str) -> None:
    """One quantity of the record against the samples each agent has seen."""
    axes.plot([line.samples for line in record], [getattr(line, quantity) for line in record], color=COLOURS[0])
    axes.set_xlabel("samples per agent")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.margins(x=0.01)


def draw_decision_regions(axes: Axes, function: Expansion, points: Floats, labels: Ints) -> None:
    """One agent's classes over the plane: regions, boundaries, lines of 50 % and 90 % confidence, and its dictionary."""
    low, high = points.min(axis=0) - 0.3, points.max(axis=0) + 0.3
    across, up = (np.linspace(a, b, 240) for a, b in zip(low, high, strict=True))
    grid = np.stack(np.meshgrid(across, up), axis=-1)
    odds = Logistic().probabilities(function(grid.reshape(-1, 2)))
    best = odds.argmax(axis=1).reshape(grid.shape[:2])
    classes = function.outputs
    palette = [COLOURS[c % len(COLOURS)] for c in range(classes)]
    extent = (low[0], high[0], low[1], high[1])
    axes.imshow(
        best,
        origin="lower",
        extent=extent,
        cmap=ListedColormap(palette),
        vmin=0,
        vmax=classes - 1,
        alpha=0.35,
        aspect="auto",
    )
    for c in range(classes):
        axes.contour(across, up, best == c, levels=[0.5], colors="black", linewidths=0.9)
    sure = odds.max(axis=1).reshape(grid.shape[:2])
    axes.contour(across, up, sure, levels=[0.5, 0.9], colors="black", linestyles=["dotted", "dashed"], linewidths=0.6)
    shown = slice(0, 1500)
    axes.scatter(points[shown, 0], points[shown, 1], s=3, c=[palette[label] for label in labels[shown]], linewidths=0)
    axes.scatter(
        function.centres[:, 0],
        function.centres[:, 1],
        s=34,
        facecolor="black",
        edgecolor="white",
        linewidths=0.8,
        label=f"dictionary ({function.order})",
    )
    axes.set_xlabel("$x_1$")
    axes.set_ylabel("$x_2$")
    axes.legend(loc="upper right", framealpha=0.9)

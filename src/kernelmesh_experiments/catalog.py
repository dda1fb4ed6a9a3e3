"""All experiments by name; to add one, add its module here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kernelmesh import MissingExtra

if TYPE_CHECKING:  # they pull in plotting and solvers
    from kernelmesh_experiments.base import Experiment

__all__ = ["experiments"]

# each has a tuple EXPERIMENTS
_MODULES = ("gmm", "one_class", "brodatz", "theory", "baselines", "drift")


def experiments() -> dict[str, Experiment]:
    """All experiments by name, imported now.

    >>> list(experiments())[:2]
    ['gmm-logistic', 'gmm-hinge']
    """
    try:
        modules = [importlib.import_module(f"kernelmesh_experiments.{name}") for name in _MODULES]
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kernelmesh"):  # a mistake of ours, which no package mends
            raise
        raise MissingExtra("experiments", "experiments") from error
    return {experiment.name: experiment for module in modules for experiment in module.EXPERIMENTS}

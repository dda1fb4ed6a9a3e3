"""Experiments, one file per figure or claim, each registered as an `Experiment`.

`run` runs any of them; `events` defines what observers receive, `outcome` how a run can end.
"""

from importlib import import_module

from kernelmesh.errors import MissingExtra

# the modules whose import registers an experiment
_SHIPPED: tuple[str, ...] = ("gmm", "one_class", "brodatz", "heterogeneous", "budget_sweep", "violation")
_SHIPPED += ("theory", "baselines", "drift")

try:
    from kernelmesh.experiments.base import Experiment, Session, run
    from kernelmesh.experiments.cells import Cell, means
    from kernelmesh.experiments.events import Event, Finished, Observer
    from kernelmesh.experiments.network import Network
    from kernelmesh.experiments.settings import describe_settings, settings_of
    from kernelmesh.experiments.trial import Trial, learn
    from kernelmesh.report import Findings

    for _module in _SHIPPED:
        import_module(f"{__name__}.{_module}")
except ModuleNotFoundError as error:
    if (error.name or "").startswith("kernelmesh"):  # a mistake of ours, which no package mends
        raise
    raise MissingExtra("experiments", "experiments") from error

__all__ = ["Cell", "Event", "Experiment", "Findings", "Finished", "Network", "Observer", "Session", "Trial", "learn", "means"]
__all__ += ["describe_settings", "run", "settings_of"]

"""The settings of an experiment from the command line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmesh import InvalidArgument

if TYPE_CHECKING:
    from kernelmesh_experiments.base import Experiment

__all__ = ["check_writable", "read_file", "read_settings"]


def read_settings(experiment: Experiment, options: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Options that are given, overridden by NAME=VALUE pairs."""
    from kernelmesh_experiments.settings import describe_settings, did_you_mean, type_of

    known = describe_settings(experiment.config)
    listed = f"`kernelmesh show {experiment.name}` lists its settings"
    out = {}
    for name, value in options.items():
        if name not in known:
            raise InvalidArgument("run", f"--{name}", f"be a setting of {experiment.name}", value, remedy=listed)
        out[name] = value
    for change in changes:
        name, equals, text = change.partition("=")
        if name not in known:
            remedy = "; ".join(filter(None, (did_you_mean(name, known), listed)))
            raise InvalidArgument("run", "--set", f"name a setting of {experiment.name}", change, remedy=remedy)
        if not equals:
            raise InvalidArgument("run", "--set", "be NAME=VALUE", change)
        kind = type_of(experiment.config, name)
        try:
            out[name] = kind(text)
        except ValueError:
            raise InvalidArgument("run", f"--set {name}", f"be of type {kind.__name__}", text) from None
    return out


def read_file(experiment: Experiment, file: Path | None) -> dict[str, Any]:
    """The settings of an earlier run, if there is a file with them."""
    from kernelmesh_experiments.settings import describe_settings, type_of

    if file is None:
        return {}
    try:
        settings = json.loads(file.read_text())
        of = settings.pop("experiment", experiment.name)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument("run", "--config", f"be a readable config.json ({error})", str(file)) from None
    if of != experiment.name:
        raise InvalidArgument("run", "--config", f"come from the experiment {experiment.name}", of)
    known = describe_settings(experiment.config)
    if not settings.keys() <= known.keys():
        raise InvalidArgument("run", "--config", f"contain only the settings {', '.join(known)}", settings)
    # JSON has no infinity: it is written as text
    infinite = {name for name, value in settings.items() if value == "inf" and type_of(experiment.config, name) is float}
    return {name: float(value) if name in infinite else value for name, value in settings.items()}


def check_writable(folder: Path) -> None:
    """Create the folder and check that it is writable before the work starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgument("run", "--out", f"be a writable folder ({error.strerror})", str(folder)) from None

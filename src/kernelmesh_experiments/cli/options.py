"""The settings of an experiment from the command line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmesh import InvalidArgument

if TYPE_CHECKING:
    from kernelmesh_experiments.base import Experiment

__all__ = ["check_writable", "read_file", "read_settings"]


def read_settings(command: str, experiment: Experiment, changes: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """The settings in NAME=VALUE pairs; of several values for one, the last."""
    from kernelmesh_experiments.settings import describe_settings, did_you_mean, type_of

    known = describe_settings(experiment.config)
    out = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if name not in known:
            listed = f"`kernelmesh show {experiment.name}` lists its settings"
            remedy = "; ".join(filter(None, (did_you_mean(name, known), listed)))
            raise InvalidArgument(command, option, f"name a setting of {experiment.name}", change, remedy=remedy)
        if not equals:
            raise InvalidArgument(command, option, "be NAME=VALUE", change)
        kind = type_of(experiment.config, name)
        try:
            out[name] = kind(text)
        except ValueError:
            raise InvalidArgument(command, f"{option} {name}", f"be of type {kind.__name__}", text) from None
    return out


def read_file(experiment: Experiment, file: Path) -> list[str]:
    """The settings of an earlier run as NAME=VALUE pairs."""
    try:
        settings = json.loads(file.read_text())
        of = settings.pop("experiment")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise InvalidArgument("run", "--config", f"be a readable config.json ({error})", str(file)) from None
    if of != experiment.name:
        raise InvalidArgument("run", "--config", f"come from the experiment {experiment.name}", of)
    return [f"{name}={value}" for name, value in settings.items() if value is not None]


def check_writable(folder: Path) -> None:
    """Create the folder and check that it is writable before the work starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgument("run", "--out", f"be a writable folder ({error.strerror})", str(folder)) from None

"""The `kernelmesh` command."""

import importlib
import os
import sys
from importlib.util import find_spec

from kernelmesh.cli import agents, dashboards, meshes  # each adds its commands
from kernelmesh.cli.base import app, stderr

__all__ = ["agents", "app", "dashboards", "main", "meshes"]

# Packages beside this one that add commands when they are imported, which must be quick; the library does not need them.
for _package in ("kernelmesh_experiments",):
    if find_spec(_package) is not None:
        importlib.import_module(f"{_package}.cli")


def main() -> None:
    """Entry point of the `kernelmesh` command."""
    # matrices are small, and agents and workers are processes of their own: one thread each, unless the user says otherwise
    for library in ("OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")  # read when NumPy is imported, which no command has done yet
    try:
        app()
    except KeyboardInterrupt:
        stderr.print("Interrupted.")
        sys.exit(130)

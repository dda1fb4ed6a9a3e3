"""The `kernelmesh` command."""

import sys

from kernelmesh.cli import agents, dashboards, experiments, meshes, sweeps  # each adds its commands
from kernelmesh.cli.base import app, stderr

__all__ = ["agents", "app", "dashboards", "experiments", "main", "meshes", "sweeps"]


def main() -> None:
    """Entry point of the `kernelmesh` command."""
    try:
        app()
    except KeyboardInterrupt:
        stderr.print("Interrupted.")
        sys.exit(130)

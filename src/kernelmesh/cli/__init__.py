"""The `kernelmesh` command."""

import sys

from kernelmesh.cli import agents, dashboards, experiments, meshes  # each adds its commands
from kernelmesh.cli.base import app, stderr

__all__ = ["agents", "app", "dashboards", "experiments", "main", "meshes"]


def main() -> None:
    """Entry point of the `kernelmesh` command."""
    try:
        app()
    except KeyboardInterrupt:
        stderr.print("Interrupted.")
        sys.exit(130)

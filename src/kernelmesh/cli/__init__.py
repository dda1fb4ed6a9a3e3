"""The `kernelmesh` command."""

from __future__ import annotations

import sys

from kernelmesh.cli import agents, experiments, meshes  # each adds its commands
from kernelmesh.cli.base import app, stderr

__all__ = ["agents", "app", "experiments", "main", "meshes"]


def main() -> None:
    """Entry point of the `kernelmesh` command."""
    try:
        app()
    except KeyboardInterrupt:
        stderr.print("interrupted before there was anything to keep")
        sys.exit(130)

"""The commands `list`, `show`, `run` and `sweep`; imported when `kernelmesh` starts, so imports here must be quick."""

from kernelmesh_experiments.cli import listing, run, sweep  # each adds its commands

__all__ = ["listing", "run", "sweep"]

"""Simulation on a Ray cluster (extra `ray`)."""

from kernelmesh.runtimes.ray.engine import RayEngine

__all__ = ["RayEngine"]

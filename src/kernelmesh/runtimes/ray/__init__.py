"""Agents spread over the actors of a Ray cluster (extra `ray`)."""

from kernelmesh.runtimes.ray.engine import RayEngine

__all__ = ["RayEngine"]

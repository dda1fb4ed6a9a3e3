"""The protocols by name, with the settings that the mixture experiments give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kernelmesh.checks import Floats
from kernelmesh.consensus import Consensus, Diffusion, ExactDiffusion, Hilbert, Local, Penalty, Proximal, Symmetric
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.schedules import Doubling

__all__ = ["NAMES", "PROTOCOLS", "protocol"]

PROTOCOLS = ("local", "penalty", "proximal", "symmetric", "hilbert", "diffusion", "exact-diffusion")
NAMES = (*PROTOCOLS, "capped-penalty")
"""All names: `capped-penalty` is `penalty` with c capped at half of what is stable, whatever other limit is set."""
_SAFE = 0.5


def protocol(
    name: str,
    *,
    schedule: Doubling,
    share_of_limit: float,
    dual_budget: float,
    kernel: Kernel,
    batches: Sequence[Floats],
    graph: Graph,
    step_size: float,
) -> Consensus:
    """A protocol with the given schedule of c; for those that need it, c is capped at a share of what is stable."""

    def capped(kind: type[Penalty] | type[Hilbert], share: float = share_of_limit) -> Consensus:
        most = kind(coupling=1.0).most(kernel, batches, step_size, graph.stiffness)
        return kind(coupling=dataclasses.replace(schedule, ceiling=share * most))

    match name:
        case "local":
            return Local()
        case "penalty":
            return capped(Penalty)
        case "capped-penalty":
            return capped(Penalty, _SAFE)
        case "hilbert":
            return capped(Hilbert)
        case "proximal":
            return Proximal(coupling=schedule)
        case "symmetric":
            return Symmetric(coupling=schedule)
        case "diffusion":
            return Diffusion()
        case "exact-diffusion":
            return ExactDiffusion(budget=dual_budget)
    raise ValueError(f"protocol: must be one of {', '.join(NAMES)}, got {name!r}")

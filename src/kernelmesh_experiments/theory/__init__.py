"""The paper's guarantees checked in actual runs against their bounds: one file per claim."""

import dataclasses
from typing import Any

from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.report import Findings
from kernelmesh_experiments.settings import one_of
from kernelmesh_experiments.theory import corollary_1, model_order, proposition_1, proposition_2, theorem_1, theorem_2
from kernelmesh_experiments.theory.claims import Claim, Config

__all__ = ["CLAIMS", "EXPERIMENTS", "Claim", "Config"]

CLAIMS = (proposition_1.CLAIM, model_order.CLAIM, corollary_1.CLAIM, theorem_1.CLAIM, proposition_2.CLAIM, theorem_2.CLAIM)


def run(config: Config, session: Session) -> Findings:
    """Every claim whose cells are all there."""
    one_of("all", *(claim.name for claim in CLAIMS))("theory", "claim", config.claim)
    needed = {claim: claim.cells(config) for claim in CLAIMS if config.claim in ("all", claim.name)}
    done = session.compute({name: cell for cells in needed.values() for name, cell in cells.items()})
    summary: dict[str, Any] = {"seed": config.seed}
    figures = {}
    for claim, cells in needed.items():
        if cells.keys() <= done.keys():
            numbers, figures[claim.name] = claim.summarize(config, done)
            summary |= numbers
    return Findings(summary=summary, figures=figures, paragraphs=_PARAGRAPHS)


def table(config: Config, session: Session) -> Findings:
    """The same with runs ten times as long."""
    return run(dataclasses.replace(config, passes=10 * config.passes, stream=10 * config.stream), session)


_PARAGRAPHS = (
    "In the convergence runs all agents draw from the same 60 samples, so that the minimizer of the penalized objective is "
    "the same for all of them and can be computed exactly; so it is for Proposition 2, where their samples differ.",
    "The bound on the model order counts cells of a grid over the samples: it is finite, as the theorem says, and loose. "
    "The bound of Theorem 1 uses the largest gradient noise that was seen in the run.",
    "`penalty` and `hilbert` are omitted for c above 0.8 times their stability limit.",
)

EXPERIMENTS = (
    Experiment(
        name="theory",
        about="the paper's guarantees in actual runs, each with its bound; --all with runs ten times as long",
        config=Config,
        run=run,
        table=table,
        takes="1 min, 10 min with --all",
    ),
)

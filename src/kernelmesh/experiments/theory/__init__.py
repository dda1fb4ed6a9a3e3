"""The paper's guarantees checked in actual runs against their bounds: one file per claim."""

from typing import Any

from kernelmesh.experiments import Experiment, Findings, Session
from kernelmesh.experiments.theory import corollary_1, model_order, proposition_1, proposition_2, theorem_1, theorem_2
from kernelmesh.experiments.theory.claims import Claim, Config
from kernelmesh.registry import register

__all__ = ["CLAIMS", "EXPERIMENT", "Claim", "Config"]

CLAIMS = (proposition_1.CLAIM, model_order.CLAIM, corollary_1.CLAIM, theorem_1.CLAIM, proposition_2.CLAIM, theorem_2.CLAIM)


def run(config: Config, session: Session) -> Findings:
    """Every claim whose cells are all there."""
    needed = {claim.name: claim.cells(config) for claim in CLAIMS}
    done = session.compute({name: cell for cells in needed.values() for name, cell in cells.items()})
    summary: dict[str, Any] = {"seed": config.seed}
    figures = {}
    for claim in CLAIMS:
        if needed[claim.name].keys() <= done.keys():
            numbers, figures[claim.name] = claim.summarize(config, done)
            summary |= numbers
    return Findings(summary=summary, figures=figures, paragraphs=_PARAGRAPHS)


_PARAGRAPHS = (
    "All agents draw from the same 60 samples in the convergence runs: then the minimizer of the penalized objective is the "
    "same function for all of them, whatever c is, and can be computed exactly. For agents with different samples the "
    "printed update is not the gradient of the penalized objective (it moves only one end of each edge), and theorems about "
    "that gradient do not apply to it.",
    "The bound on the model order counts cells of a grid over the samples within which features are indistinguishable at the "
    "budget. It is finite, which is what the theorem says, and very loose.",
    "The bound of Theorem 1 uses the largest gradient noise that was seen in the run.",
)

_ABOUT = "the paper's guarantees in actual runs, each with its bound"
EXPERIMENT = Experiment(name="theory", about=_ABOUT, config=Config, run=run)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)

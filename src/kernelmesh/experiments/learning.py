"""The learning rules by name, and agents built from an experiment's settings."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from kernelmesh import Agent, Averaged, ConsensusProtocol, Kernel, Komp, Landmarks, Local, Relay, SecondOrder
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.experiments.protocols import ProtocolName, check_every, protocol, protocols, shares
from kernelmesh.experiments.settings import Count, Index, NonNegative, Positive, PositiveOrInf, Settings
from kernelmesh.learners import Learner
from kernelmesh.numerics.losses import Logistic, Loss
from kernelmesh.numerics.schedules import Schedule
from kernelmesh.protocols import Tuning
from kernelmesh.registry import kebab, kinds
from kernelmesh.schema import one_of, setting

__all__ = ["LearningSettings", "Rates", "RuleName", "agent_for", "describe_rules", "parsimonious_agent", "rules"]

_LOGISTIC = Logistic()


def rules() -> dict[str, type[Learner]]:
    """All registered learning rules by the names that the command line has for them, the paper's first.

    >>> list(rules())[:3]
    ['gradient', 'averaged', 'second-order']
    """
    known = {kebab(name): kind for name, kind in kinds("learner").items()}
    return {name: known.pop(name) for name in ("gradient", "averaged", "second-order", "landmarks")} | known


def describe_rules() -> dict[str, str]:
    """What each name of `rule` stands for: the line at the top of its file."""
    pages = {name: inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) for name, kind in rules().items()}
    return {name: (page or "").partition("\n")[0] for name, page in pages.items()}


def _check_name(owner: str, argument: str, value: object) -> str:
    """A name that `rules` knows."""
    return str(one_of(*rules())(owner, argument, value))


RuleName = Annotated[str, _check_name]


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Settings, owner="network"):
    """How many agents there are, how they come to agree, and how each learns: as in the paper, and with other rules."""

    agents: Count = setting(1, doc="agents in the network")
    protocol: ProtocolName = setting("local", doc="the consensus protocol; see `kernelmesh list --protocols`")
    rule: RuleName = setting("gradient", doc="the learning rule; see `kernelmesh list --rules`")
    step_size: Positive = setting(3.0, doc="η, the step size of `gradient`")
    parsimony: NonNegative = setting(0.04, doc="K of the budget of `gradient`, ε = K η^1.5")
    regularization: NonNegative = setting(1e-6, doc="λ of rules that take a step size")
    max_order: Index = setting(0, doc="maximum number of points in a dictionary, with any rule; 0 means no limit")
    averaged_step_size: Positive = setting(30.0, doc="η, the step size of `averaged`")
    averaged_parsimony: NonNegative = setting(0.06, doc="K of the budget of `averaged`, ε = K √η")
    averaged_fidelity: Positive = setting(
        Averaged.fidelity, doc="accuracy of the last iterate of `averaged` in compression, relative to the average"
    )
    second_order_regularization: Positive = setting(
        SecondOrder.usual_regularization, doc="λ of `second-order`, which corresponds to 1/C of an SVM"
    )
    second_order_budget: NonNegative = setting(
        SecondOrder.budget, doc="increase in loss per sample that removing points may cause with `second-order`"
    )
    second_order_novelty: Positive = setting(
        SecondOrder.novelty,
        doc="ν of `second-order`: samples closer² than ν κ(x, x) to the span of the dictionary do not become points",
    )
    second_order_iterations: Count = setting(
        SecondOrder.iterations, doc="maximum majorize-minimize iterations per step of `second-order`"
    )
    landmarks_regularization: Positive = setting(
        Landmarks.usual_regularization, doc="λ of `landmarks`, for the whole network"
    )
    landmarks_novelty: Positive = setting(
        Landmarks.novelty, doc="ν of `landmarks`: samples closer² than ν κ(x, x) to the span of the list do not become points"
    )
    landmarks_keep: Index = setting(
        Landmarks.keep, doc="samples that an agent with `landmarks` keeps, to linearize their losses again"
    )
    half_life: PositiveOrInf = setting(
        math.inf, doc="number of samples after which old data counts half, for all rules but `gradient`"
    )
    every: Index = setting(
        0, doc="rounds between exchanges of functions, or between waves of `relay`; 0 means the protocol's default"
    )
    bits: Count = setting(Relay.bits, doc="size of a number on the wire with `relay`: 16, 32 or 64")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_every(self.owner, self.every, self.protocol)
        if self.fitting == ["local"]:  # other rules may be for a table with several protocols
            self._check_protocol()

    @property
    def learns_by(self) -> str:
        """The name of the rule: agents that share sums have `landmarks` in place of the default."""
        return "landmarks" if self.learner == "gradient" and shares(self.protocol) else self.learner

    @property
    def fitting(self) -> list[str]:
        """The protocols by which agents with the learner can learn."""
        return [name for name in protocols() if self.suits(name)]

    def suits(self, name: str) -> bool:
        """Whether agents with the learner can learn by a protocol."""
        if name == "local":
            return True
        return self.learner in ("gradient", "landmarks") if shares(name) else rules()[self.learner].listens

    @property
    def initial_step_size(self) -> float:
        """η of the rule."""
        return self.averaged_step_size if self.learner == "averaged" else self.step_size

    @property
    def budget(self) -> float:
        """ε of the rule, where it takes a step size."""
        eta = self.initial_step_size
        return self.averaged_parsimony * math.sqrt(eta) if self.learner == "averaged" else self.parsimony * eta**1.5

    def protocol(self, tuning: Tuning) -> ConsensusProtocol:
        """The protocol, set up for a network; rules that learn alone have none."""
        self._check_protocol()
        found = protocol(self.protocol, tuning) if self.suits(self.protocol) else Local()
        return dataclasses.replace(found, bits=self.bits) if isinstance(found, Relay) else found

    def _check_protocol(self) -> None:
        if self.agents > 1 and not self.suits(self.protocol):
            rule = f"be {' or '.join(self.fitting)} with the learner {self.learner}"
            remedy = "`--protocol local`, or a network of one with `--agents 1`"
            raise InvalidArgument(self.owner, "protocol", rule, Verbatim(self.protocol), remedy=remedy)

    def learning_rule(self) -> Learner:
        """The rule with its settings; one from elsewhere has its own defaults."""
        own: dict[str, dict[str, Any]] = {
            "averaged": {"fidelity": self.averaged_fidelity, "half_life": self.half_life},
            "second-order": {
                "budget": self.second_order_budget,
                "max_order": self.max_order or None,
                "novelty": self.second_order_novelty,
                "half_life": self.half_life,
                "iterations": self.second_order_iterations,
            },
            "landmarks": {
                "novelty": self.landmarks_novelty,
                "max_order": self.max_order or Landmarks.max_order,
                "keep": self.landmarks_keep,
                "half_life": self.half_life,
            },
        }
        kind: Callable[..., Learner] = rules()[self.learns_by]
        return kind(**own.get(self.learns_by, {}))


class Rates(NamedTuple):
    """How fast an agent learns and forgets with gradient steps: η, the K of its budget, λ."""

    step_size: Schedule | float
    parsimony: float
    regularization: float


def parsimonious_agent(
    shape: tuple[int, int], kernel: Kernel, rates: Rates, protocol: ConsensusProtocol, *, loss: Loss = _LOGISTIC
) -> Agent:
    """An agent for points of `shape[0]` numbers with `shape[1]` outputs and the paper's budget, ε = K η^1.5."""
    return Agent(
        dimension=shape[0],
        outputs=shape[1],
        kernel=kernel,
        loss=loss,
        step_size=rates.step_size,
        regularization=rates.regularization,
        compression=Komp.parsimonious(rates.step_size, parsimony=rates.parsimony),
        protocol=protocol,
    )


def agent_for(
    settings: LearningSettings, shape: tuple[int, int], kernel: Kernel, protocol: ConsensusProtocol, *, loss: Loss = _LOGISTIC
) -> Agent:
    """An agent for points of `shape[0]` numbers with `shape[1]` outputs that learns by the rule of some settings."""
    rule, eta, cap = settings.learning_rule(), settings.initial_step_size, settings.max_order or None
    shared: dict[str, Any] = {
        "dimension": shape[0],
        "outputs": shape[1],
        "kernel": kernel,
        "loss": loss,
        "protocol": protocol,
    }
    if not rule.takes_step_size:
        own = {"second-order": settings.second_order_regularization, "landmarks": settings.landmarks_regularization}
        return Agent(**shared, rule=rule, regularization=own.get(settings.learns_by))
    if isinstance(rule, Averaged):
        compression = Komp.averaging(eta, parsimony=settings.averaged_parsimony, max_order=cap)
    else:
        compression = Komp.parsimonious(eta, parsimony=settings.parsimony, max_order=cap)
    return Agent(**shared, rule=rule, step_size=eta, regularization=settings.regularization, compression=compression)

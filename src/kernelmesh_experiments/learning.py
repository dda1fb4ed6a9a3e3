"""How agents learn and come to agree: the settings of every experiment with networks, and agents built from them."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelmesh import Agent, ConsensusProtocol, InvalidArgument, Kernel, Komp, Learner, Local, Relay, Tuning
from kernelmesh_experiments.kinds import LOSSES, LearnerName, ProtocolName, check_every, learners, protocol, protocols, reply
from kernelmesh_experiments.settings import Count, Index, Settings, Unset, UnsetIndex, setting

__all__ = ["LearningSettings"]

# The settings that belong to a learner or to its compression; unset, they are what `usual` says, or the learner's own.
_OF_LEARNER = ("step_size", "regularization", "fidelity", "novelty", "iterations", "keep", "half_life", "budget")
_OF_COMPRESSION = ("parsimony", "max_order")


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Settings, owner="network"):
    """How many agents there are, how they come to agree, and how each learns: as in the paper, and with other learners."""

    usual: ClassVar[Mapping[str, Mapping[str, float]]] = {"gradient": {"step_size": 3.0}, "averaged": {"step_size": 30.0}}
    """The settings of learners that an experiment chooses."""

    agents: Count = setting(1, doc="agents in the network")
    protocol: ProtocolName = setting("local", doc="the consensus protocol; see `kernelmesh list --protocols`")
    learner: LearnerName = setting(
        "gradient",
        doc="the learner; see `kernelmesh list --learners`. Where agents share sums, `landmarks` with its defaults takes the "
        "place of `gradient`",
    )
    step_size: Unset = setting(None, doc="η; unset: 3 with `gradient` and 30 with `averaged`, or what the experiment needs")
    parsimony: Unset = setting(None, doc="K of the budget, ε = K η^1.5 with `gradient` and K √η with `averaged`")
    regularization: Unset = setting(None, doc="λ; unset: the learner's default")
    max_order: UnsetIndex = setting(None, doc="maximum number of points in a dictionary; unset: the learner's default")
    fidelity: Unset = setting(None, doc="accuracy of the last iterate of `averaged` in compression, relative to the average")
    budget: Unset = setting(None, doc="increase in loss per sample that removing points may cause with `second-order`")
    novelty: Unset = setting(
        None,
        doc="ν of `second-order` and `landmarks`: samples closer² than ν κ(x, x) to the span of the others are no points",
    )
    iterations: UnsetIndex = setting(None, doc="maximum majorize-minimize iterations per step of `second-order`")
    keep: UnsetIndex = setting(None, doc="samples that an agent with `landmarks` keeps, to linearize their losses again")
    half_life: Unset = setting(None, doc="number of samples after which old data counts half; unset: never")
    every: Index = setting(
        0, doc="rounds between exchanges of functions, or between waves of `relay`; 0 means the protocol's default"
    )
    bits: Count = setting(Relay.bits, doc="size of a number on the wire with `relay`: 16, 32 or 64")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_every(self.owner, self.every, self.protocol)
        known = self._settings_of(learners()[self.learner])
        for name in (name for name in self._given if name not in known):
            rule = f"be omitted with the learner {self.learner}, which has no such setting"
            raise InvalidArgument(self.owner, name, rule, getattr(self, name))
        if self.fitting == ["local"]:  # other learners may be for a table with several protocols
            self._check_protocol()

    @property
    def learns_by(self) -> str:
        """The name of the learner of every agent."""
        return self._learner_with(self.protocol)

    def _learner_with(self, name: str) -> str:
        heard = reply(name)
        shares = heard is not None and heard in learners()["landmarks"].hears
        return "landmarks" if self.learner == "gradient" and shares else self.learner

    @property
    def fitting(self) -> list[str]:
        """The protocols by which agents with the learner can learn."""
        return [name for name in protocols() if self.suits(name)]

    def suits(self, name: str) -> bool:
        """Whether agents with the learner can learn by a protocol."""
        return reply(name) is None or reply(name) in learners()[self._learner_with(name)].hears

    @property
    def initial_step_size(self) -> float:
        """η of the learner; 0 if it has none."""
        return self.make_learner().step_size_at(0)

    def make_protocol(self, tuning: Tuning) -> ConsensusProtocol:
        """The protocol, set up for a network; learners that learn alone have none."""
        self._check_protocol()
        found = protocol(self.protocol, tuning) if self.suits(self.protocol) else Local()
        return dataclasses.replace(found, bits=self.bits) if isinstance(found, Relay) else found

    def _check_protocol(self) -> None:
        if self.agents > 1 and not self.suits(self.protocol):
            rule = f"be {' or '.join(self.fitting)} with the learner {self.learner}"
            remedy = "`--protocol local`, or a network of one with `--agents 1`"
            raise InvalidArgument(self.owner, "protocol", rule, self.protocol, remedy=remedy)

    @property
    def _given(self) -> dict[str, Any]:
        """The settings of the learner that are set."""
        values = {name: getattr(self, name) for name in (*_OF_LEARNER, *_OF_COMPRESSION)}
        return {name: value for name, value in values.items() if value is not None}

    def _settings_of(self, kind: Any) -> set[str]:
        own = {field.name for field in dataclasses.fields(kind)}
        return own | (set(_OF_COMPRESSION) if "compression" in own else set())

    def make_learner(self) -> Learner:
        """The learner with its settings."""
        name = self.learns_by
        kind: Callable[..., Learner] = learners()[name]
        known = self._settings_of(kind)
        usual = self.usual.get(name, self.usual["gradient"])
        own = {**usual, **(self._given if name == self.learner else {})}
        own = {each: value for each, value in own.items() if each in known}
        if "compression" in known:
            own["compression"] = Komp(**{each: own.pop(each) for each in _OF_COMPRESSION if each in own})
        return kind(**own)

    def make_agent(
        self, shape: tuple[int, int], kernel: Kernel, protocol: ConsensusProtocol, *, loss: str = "logistic"
    ) -> Agent:
        """An agent for points of `shape[0]` numbers with `shape[1]` outputs."""
        shared: dict[str, Any] = {"dimension": shape[0], "outputs": shape[1], "kernel": kernel, "loss": LOSSES[loss]}
        return Agent(**shared, learner=self.make_learner(), protocol=protocol)

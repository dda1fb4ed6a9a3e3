"""What a node knows of each neighbor, and what it has to say in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelmesh.agent import Agent
from kernelmesh.links import Link
from kernelmesh.messages import Function, Message
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.runtimes.carrier import Answer
from kernelmesh.streams import Batch

__all__ = ["ALIVE", "KINDS", "Neighbor", "Outbox", "Taken", "style_of"]

ALIVE = 3.0
"""Seconds without a sign of life for which a neighbor still counts as there."""

KINDS = {
    "functions": ("function", "difference"),
    "offers": ("offer", "offer-difference", "repair"),
}
"""The messages that answers may be, by what goes over an edge."""


@dataclass(eq=False, slots=True)
class Neighbor:
    """What is known of one neighbor."""

    name: str
    is_first: bool
    """Whether we stand before it."""
    link: Link = field(default_factory=Link)
    ticket: int = 0
    """Of the question that is out; 0: none."""
    asked_step: int = 0
    """The step that question is about; 0: a sign of life is all that is wanted; negative: its own question, once more."""
    prompt: bool = True
    """Whether it answered in time when last asked: only then is it waited for."""
    ahead: int = 0
    """In lock step, the ticket of the question about the step after the one at hand; 0: it has not been asked yet."""
    early: Answer | None = None
    """The answer to that."""
    failures: int = 0
    ask_again: float = 0.0
    answer: Message | None = None
    """To the question about the step at hand; where functions are exchanged, the newest."""
    answered_step: int = 0
    question: Message | None = None
    """Its own newest question."""
    question_step: int = 0
    raw_answer: bytes | None = None
    raw_question: bytes | None = None
    share: float = 0.0
    token: int = 0
    ended: bool = False
    """Whether it had no samples any more: in lock step, for the step at hand; otherwise by its newest note."""
    finished: bool = False
    """Whether its stream has ended for good."""
    seen: float = -1e9
    offered: bool = False
    """Whether it was made an offer from the present state."""

    def alive(self, now: float) -> bool:
        return now - self.seen < ALIVE


@dataclass(eq=False, slots=True)
class Taken:
    """A mini-batch, where the stream stands after it, and what neighbors are asked about it."""

    batch: Batch
    position: Mapping[str, Any]
    question: bytes = b""
    question_floats: int = 0


@dataclass(eq=False, slots=True)
class Outbox:
    """What this agent has to say in a step, from the state before it."""

    step: int
    function: Expansion
    batch: Batch | None = None
    open: bool = False
    """Whether it is known if there are samples for it."""
    position: Mapping[str, Any] | None = None
    """Where the stream stands after the mini-batch."""
    question: bytes = b""
    question_floats: int = 0
    said: dict[str, Message] = field(default_factory=dict)
    """What each neighbor is told, where functions are exchanged."""
    packed: dict[tuple[str, int], Message] = field(default_factory=dict)
    """The same as it travels, by neighbor and the step it was asked about."""
    counted: set[tuple[str, int]] = field(default_factory=set)


def style_of(agent: Agent) -> tuple[str, str]:
    """What goes over an edge: offers, functions, points with values coming back, or nothing."""
    if agent.offers:
        return "offers", ""
    zero = Expansion.zero(agent.kernel, dimension=agent.dimension, outputs=agent.outputs)
    question = agent.consensus.ask(zero, np.zeros((1, agent.dimension)))
    if question is None:
        return "nothing", ""
    return "functions" if isinstance(question, Function) else "points", question.kind

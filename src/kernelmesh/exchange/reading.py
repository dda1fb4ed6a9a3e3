"""Decodes received bytes into messages for a step, or rejects them."""

import math
from collections.abc import Sequence

import numpy as np

from kernelmesh.agent import Agent, State, check_message
from kernelmesh.checks import Floats
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import Message, SentFunction, Values, decode
from kernelmesh.numerics.function import Function
from kernelmesh.protocols import Heard

__all__ = ["check_points", "disagreement", "read_question", "read_reply"]


def check_points(what: str, message: Message, max_points: int) -> None:
    """Reject a message with more points than a step may process, whatever else it contains."""
    found = max((len(getattr(message, name)) for name in message.tables), default=0)
    if found > max_points:
        raise RefusedMessage(f"{what}: must have at most {max_points} points", found)


def read_question(agent: Agent, data: bytes, *, max_bytes: int, max_points: int = 1 << 31) -> Message | None:
    """A neighbor's query, which is empty if nothing depends on its points; raises `RefusedMessage` or `InvalidArgument`."""
    wanted = agent.protocol.question
    if wanted is None:
        if data:
            raise RefusedMessage("question: must be empty where functions are exchanged")
        return None
    question: Message = decode(data, max_bytes=max_bytes)
    if not isinstance(question, wanted):
        raise RefusedMessage(f"question: must be {wanted.kind}", question.kind)
    check_points("question", question, max_points)
    check_message(agent, "exchange", "question", question)
    return question


def read_reply(agent: Agent, data: bytes, *, rows: int | None, max_bytes: int, max_points: int = 1 << 31) -> Message:
    """A neighbor's reply; `rows` is the number of points in the query."""
    wanted = agent.protocol.reply
    message: Message = decode(data, max_bytes=max_bytes)
    check_points("answer", message, max_points if rows is None else max(max_points, rows))
    if wanted is None or not isinstance(message, wanted):
        raise RefusedMessage(f"answer: must be {'nothing' if wanted is None else wanted.kind}", message.kind)
    check_message(agent, "exchange", "answer", message, rows=rows if agent.protocol.question else None)
    return message


def disagreement(agent: Agent, state: State, points: Floats, heard: Sequence[Heard]) -> float | None:
    """√ mean ‖f(x) − f_j(x)‖² over these points and the neighbors that replied; None if none did."""
    here, gaps = state.function(points), []
    for said in heard:
        if isinstance(said.reply, Values):
            there = said.reply.values
        elif isinstance(said.reply, SentFunction):
            there = Function.of(agent.kernel, said.reply.points, said.reply.weights)(points)
        else:
            continue
        gaps.append(((here - there) ** 2).sum(axis=1).mean())
    return math.sqrt(float(np.mean(gaps))) if gaps else None

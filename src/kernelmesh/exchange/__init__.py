"""One round of messages: from a state and its mini-batch to messages, and from messages to the input of a step.

Every runtime uses this package, so a protocol only needs to declare its `Exchange` to work in all of them.
"""

from kernelmesh.exchange.link import Link, MissingBase
from kernelmesh.exchange.outbox import Outbox
from kernelmesh.exchange.reading import DUAL_POINTS, check_points, disagreement, read_question, read_reply

__all__ = ["DUAL_POINTS", "Link", "MissingBase", "Outbox", "check_points", "disagreement", "read_question", "read_reply"]

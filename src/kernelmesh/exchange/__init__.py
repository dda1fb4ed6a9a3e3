"""One round of messages: from a state and its mini-batch to messages, and from messages to the input of a step.

Every runtime uses this package, so a protocol only needs to declare its `Exchange` to work in all of them.
"""

from kernelmesh.exchange.outbox import Outbox
from kernelmesh.exchange.reading import check_points, disagreement, read_question, read_reply

__all__ = ["Outbox", "check_points", "disagreement", "read_question", "read_reply"]

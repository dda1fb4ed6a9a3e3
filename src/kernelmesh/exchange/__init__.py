"""What crosses an edge in a round: from a state and its mini-batch to messages, and from messages to what a step hears.

Every runtime talks through this package, and a protocol need only declare its `Exchange` to be spoken by all of them.
"""

from kernelmesh.exchange.link import Link, MissingBase
from kernelmesh.exchange.outbox import Outbox
from kernelmesh.exchange.reading import DUAL_POINTS, check_points, disagreement, read_question, read_reply

__all__ = ["DUAL_POINTS", "Link", "MissingBase", "Outbox", "check_points", "disagreement", "read_question", "read_reply"]

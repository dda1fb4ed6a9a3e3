"""Where samples come from. A stream is anything that yields mini-batches."""

from kernelmesh.streams.arrays import ArrayStream, Part, deal
from kernelmesh.streams.mixture import Mixture
from kernelmesh.streams.role import Batch, Stream

__all__ = ["ArrayStream", "Batch", "Mixture", "Part", "Stream", "deal"]

"""Random choices that depend only on a seed and a count."""

import numpy as np

from kernelmesh.numerics.compiled.jit import Indices, compile_on_first_call, compiled

__all__ = ["places", "subset"]


@compiled()
def _below(seed: int, count: int, limit: int) -> np.int64:
    """A number from 0 to `limit` − 1: SplitMix64 of the seed and the count."""
    mixed = np.uint64(seed) + np.uint64(count + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.int64((mixed >> np.uint64(1)) % np.uint64(limit))


@compile_on_first_call()
def places(seed: int, seen: int, rows: int, size: int) -> Indices:
    """Where algorithm R puts each of the next rows of a stream: an index below `size`, or −1 for a row that is not kept.

    If several rows get the same index, only the last one does.
    """
    out = np.full(rows, -1)
    owner = np.full(size, -1)
    for i in range(rows):
        place = seen + i
        if place >= size:
            place = int(_below(seed, place, place + 1))
        if place < size:
            if owner[place] >= 0:
                out[owner[place]] = -1
            owner[place], out[i] = i, place
    return out


@compile_on_first_call()
def subset(seed: int, count: int, kept: int, rows: int) -> Indices:
    """The `count`-th random choice of `rows` different numbers below `kept`, in random order."""
    numbers = np.arange(kept)
    for i in range(rows):
        j = i + int(_below(~seed, (count << 20) + i, kept - i))
        numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers[:rows].copy()

"""One page on which to watch a run or a mesh: recording, sources, server, page and what can be taken away.

It reads events and files, and never computes learning itself.
"""

__all__: list[str] = []

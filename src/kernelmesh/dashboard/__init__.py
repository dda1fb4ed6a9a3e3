"""A web page for watching a run or a mesh: recording, sources, server, page and exports.

It reads events and files, and takes no part in learning.
"""

__all__: list[str] = []

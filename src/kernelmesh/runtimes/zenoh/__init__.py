"""Agents as processes on any host, connected to their neighbors by zenoh."""

from kernelmesh.runtimes.zenoh.carrier import ZenohCarrier
from kernelmesh.runtimes.zenoh.session import open_client, open_peer

__all__ = ["ZenohCarrier", "open_client", "open_peer"]

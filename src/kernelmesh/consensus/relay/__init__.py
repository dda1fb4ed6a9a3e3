"""Relay sums: a network adds up what its members know, without a server and without averaging."""

from kernelmesh.consensus.relay.memory import Memory
from kernelmesh.consensus.relay.point_list import PointList
from kernelmesh.consensus.relay.protocol import Relay

__all__ = ["Memory", "PointList", "Relay"]

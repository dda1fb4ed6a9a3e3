"""Relay sums: a network adds up what its members know, without a server and without averaging."""

from kernelmesh.protocols.relay.memory import Memory
from kernelmesh.protocols.relay.point_list import PointList
from kernelmesh.protocols.relay.protocol import Relay
from kernelmesh.protocols.relay.speaking import tell

__all__ = ["Memory", "PointList", "Relay", "tell"]

"""One agent on a network as a state machine: events and the time go in, actions come out."""

from kernelmesh.runtimes.node.node import Node
from kernelmesh.runtimes.node.pacing import FreeRunning, LockStep, Pacing
from kernelmesh.runtimes.node.sharing import SharingNode
from kernelmesh.runtimes.node.values import Action, Entry, GiveUp, Recover, Send, Stepped, Turn

__all__ = ["Action", "Entry", "FreeRunning", "GiveUp", "LockStep", "Node", "Pacing", "Recover"]
__all__ += ["Send", "SharingNode", "Stepped", "Turn"]

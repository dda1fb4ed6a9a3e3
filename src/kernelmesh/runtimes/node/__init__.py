"""One agent on a network as a state machine: events and the time go in, actions come out."""

from kernelmesh.runtimes.node.asking import AskingNode
from kernelmesh.runtimes.node.node import Node
from kernelmesh.runtimes.node.sharing import SharingNode
from kernelmesh.runtimes.node.values import Action, Entry, Recover, Send, Stepped, Traffic, Turn

__all__ = ["Action", "AskingNode", "Entry", "Node", "Recover", "Send", "SharingNode", "Stepped", "Traffic", "Turn"]

"""Runtimes carry the messages between agents and do no mathematics; the simulation defines what a round is."""

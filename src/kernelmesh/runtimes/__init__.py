"""Who carries the messages. Runtimes know no mathematics; the simulation defines what a round is."""

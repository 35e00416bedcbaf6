"""The command `nightjar`, which finds the programs of Nightjar that are installed."""

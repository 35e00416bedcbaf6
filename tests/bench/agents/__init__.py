"""Bench of the interface for agents: a hundred questions of known answer."""

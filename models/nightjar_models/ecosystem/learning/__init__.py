"""Guests that learn: networks, their tools, search and games, one program each."""

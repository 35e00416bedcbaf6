"""HLO modules as data: instructions, shapes, cost, memory, communication and launches."""

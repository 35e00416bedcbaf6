"""HLO modules as plain data: instructions, shapes, costs, memory, communication and kernel launches."""

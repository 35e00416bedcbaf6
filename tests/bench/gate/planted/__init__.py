"""Small trainings as they should be, with harmless changes, and with planted faults: the curves that are judged."""

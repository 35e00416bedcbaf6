"""Every kernel mapped back to its HLO instruction and Python line (journey 4)."""

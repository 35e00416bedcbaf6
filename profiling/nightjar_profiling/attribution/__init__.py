"""From op to Python line: data flow through HLO, stacks, and the apportioning of time among lines."""

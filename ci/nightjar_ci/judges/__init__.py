"""One judge per kind of measure: curves, samples, compile facts. Pure functions from plain data to a `Verdict`."""

"""What a run measures and records: environment, compile facts, and the result file."""

"""Real data that the workload's own packages ship, fed through Grain; nothing is downloaded."""

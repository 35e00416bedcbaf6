"""The gate of a night: gathers results and histories, asks the judges, decides on re-runs, records accepted changes."""

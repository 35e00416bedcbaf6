"""The tutorials of docs/journeys, run."""

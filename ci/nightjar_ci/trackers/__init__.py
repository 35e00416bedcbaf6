"""Copies of a night's measures in experiment trackers (MLflow, Weights & Biases), where a user asks for them."""

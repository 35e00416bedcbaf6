"""Checkpoints of Hugging Face's transformers give the same logits in our models."""

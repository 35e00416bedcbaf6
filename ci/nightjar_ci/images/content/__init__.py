"""The content of an image: its packages, layers and faults, and how it differs from another."""

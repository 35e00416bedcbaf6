"""Training data: real data sets that installed packages ship, fed through Grain; nothing is downloaded."""

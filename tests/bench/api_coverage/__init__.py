"""The share of the API that people use, and the jobs of the nightly execute."""

"""The culprit in words: the answer, the difference of its two sides, a script that reproduces it, and the report."""

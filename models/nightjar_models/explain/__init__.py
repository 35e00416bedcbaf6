"""The first operation in which two runs of a program differ."""

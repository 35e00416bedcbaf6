"""Bisection under noise: the rung of a ladder (night, package, commit) that broke a test, with its probability."""

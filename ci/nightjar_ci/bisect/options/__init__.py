"""The options of a bisection, from the command line or a verdict, and the ladder that they name."""

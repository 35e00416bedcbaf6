"""What to bisect: the options of the command line, or the same read off a verdict, and the ladder they name."""

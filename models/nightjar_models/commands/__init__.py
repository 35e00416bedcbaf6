"""One file per subcommand of `nightjar-models`."""

"""The subcommands of `nightjar-profiling`, one per file."""

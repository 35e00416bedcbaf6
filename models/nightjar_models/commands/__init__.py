"""The subcommands of `nightjar-models`, one per file."""

"""The subcommands of `nightjar-ci`, one per file: `command(...)` parses options, calls the core, prints the result."""

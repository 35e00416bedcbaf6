"""The border to jobs, which are not trusted: variables they inherit, secrets masked, files and patterns read safely."""

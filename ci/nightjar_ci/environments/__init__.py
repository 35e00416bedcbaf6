"""The environments of jobs: the current one, uv environments, and lock files."""

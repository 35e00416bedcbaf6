"""What jobs leave, treated as hostile: files opened without following links, patterns searched under a deadline."""

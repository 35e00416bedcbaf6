"""Which rungs lie between good and bad? A module per kind of ladder: packages, images, commits, a list."""

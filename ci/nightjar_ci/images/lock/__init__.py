"""Lock files of the images: their sources, updates, commits of nightly packages, and the Debian snapshot day."""

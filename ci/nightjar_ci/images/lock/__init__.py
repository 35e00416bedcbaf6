"""Lock files of the images: what each is made from, newer versions, commits of nightly packages, and the Debian day."""

"""Layer planning: the layer of each package, and the download size for users who pull every night."""

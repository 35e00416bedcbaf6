"""The steps from one version of the store to the next, in the order of their numbers."""

"""The programs of a rung, read without a clock: XLA's dump of one run, and the rungs at which the programs change."""

"""What a rung computes, told without a clock: the programs of one run as XLA dumps them, and where they change."""

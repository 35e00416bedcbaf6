"""References of the judges: committed baselines, compile costs and accepted changes."""

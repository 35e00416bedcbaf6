"""What cells are compared with: committed baselines, compiler costs and accepted changes."""

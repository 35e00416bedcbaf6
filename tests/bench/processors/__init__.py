"""The committed baselines on other processors: unchanged cells stay green, planted faults turn red."""

"""Jobs, registries, indexes, repositories and nights that attack whoever runs or reads them: `pytest tests/hostile`."""

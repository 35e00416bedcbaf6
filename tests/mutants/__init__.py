"""Single-expression mutants of the product, and the tests that notice them: `nox -s mutants`."""

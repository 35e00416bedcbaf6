"""Entry point of `python -m nightjar_ci`, which is `nightjar-ci`."""

from nightjar_ci.cli import main

main()

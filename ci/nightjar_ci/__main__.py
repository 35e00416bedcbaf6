"""`python -m nightjar_ci` is `nightjar-ci`."""

from nightjar_ci.cli import main

main()

"""`python -m nightjar_models` is `nightjar-models`."""

from nightjar_models.cli import main

main()

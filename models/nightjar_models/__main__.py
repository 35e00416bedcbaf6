"""Entry point of `python -m nightjar_models`, which is `nightjar-models`."""

from nightjar_models.cli import main

main()

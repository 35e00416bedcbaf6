"""Entry point of `python -m nightjar_profiling`, which is `nightjar-profiling`."""

from nightjar_profiling.cli import main

if __name__ == "__main__":
    main()

"""`python -m nightjar_models.conformance`: the conformance tests, with pytest's options after it.

Configuration and fixtures come from this folder alone, whatever project the command is started in.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Runs pytest, and returns its exit code; 3 where it is not installed."""
    try:
        import pytest
    except ModuleNotFoundError:
        print("error: pytest is not installed.", file=sys.stderr)
        print("Hint: pip install 'nightjar-models[conformance]'", file=sys.stderr)
        return 3
    options = ["-c", str(HERE / "pytest.ini"), f"--rootdir={HERE}", f"--confcutdir={HERE}"]
    return int(pytest.main([*options, *sys.argv[1:], str(HERE)]))


if __name__ == "__main__":
    sys.exit(main())

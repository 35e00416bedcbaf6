"""The parts of a bench need its rivals, which the tests do without: of them only `test_*.py` is collected."""

from pathlib import Path

BENCHES = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out the modules of each bench, also those in a folder of it."""
    is_part = collection_path.suffix == ".py" and BENCHES in collection_path.parent.parents
    return True if is_part and not collection_path.name.startswith("test_") else None

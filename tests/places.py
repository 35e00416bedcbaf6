"""Folders that tests read: the checkout, fakes for `PATH`, recorded programs and, where a machine has it, real data."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
FAKES = TESTS / "fakes" / "bin"
RECORDED = TESTS / "models" / "recorded"
SHARED_DATA = Path(os.environ.get("NIGHTJAR_TEST_DATA", str(ROOT.parent / "shared" / "data")))

"""The first code of a job's Python processes: starts the recorder in its folder.

It is copied into a folder on PYTHONPATH, along with a recorder as `nightjar_recorder.py`, and imports the standard
library only. A `sitecustomize` that this one hides runs before.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys


def run_next_sitecustomize(own: str) -> None:
    """Runs the `sitecustomize` that this one hides, if there is another on the path."""
    for folder in sys.path:
        path = os.path.join(folder or os.curdir, "sitecustomize.py")  # noqa: PTH118
        if os.path.isfile(path) and os.path.realpath(path) != os.path.realpath(own):  # noqa: PTH113
            runpy.run_path(path, run_name="sitecustomize")
            return


if __name__ == "sitecustomize":
    run_next_sitecustomize(__file__)
    importlib.import_module("nightjar_recorder").start()

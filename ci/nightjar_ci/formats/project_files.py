"""The folder of a project's policies and baselines.

In: the path that the user gave, or None. Out: the path to use. `nightjar-ci init` makes the folder `ci/nightjar`; a
project may keep the files in `ci`. A project without a policies file uses the one in this package.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("ci", "nightjar")  # setuptools takes a new top folder for a package, but not `ci`
FOLDERS = (FOLDER, Path("ci"))
OWN_POLICIES = Path(__file__).with_name("policies.toml")


def find_policies(given: Path | None) -> Path:
    """The policies file: the given one, else the project's, else `OWN_POLICIES`."""
    if given is not None:
        return given
    candidates = (folder / "policies.toml" for folder in FOLDERS)
    return next((path for path in candidates if path.is_file()), OWN_POLICIES)


def find_baselines(given: Path | None) -> Path:
    """The folder of baselines: the given one, else the project's, which need not exist.

    The default is the one that exists, else the one next to the project's policies.
    """
    if given is not None:
        return given
    existing = [folder / "baselines" for folder in FOLDERS if (folder / "baselines").is_dir()]
    if existing:
        return existing[0]
    policies = find_policies(None)
    folder = FOLDER if policies == OWN_POLICIES else policies.parent
    return folder / "baselines"

"""What is copied to build images of a changed tree? `docker/`, and the doctor of the base image."""

import shutil
from pathlib import Path

from nightjar_ci.images.tree import find_checkout

CHECKOUT = find_checkout(Path(__file__).parent)
MODELS = Path("models/nightjar_models")


def copy_sources(root: Path) -> None:
    """Copies into a folder what base, cuda, jax, te, dali and devcontainer are made of."""
    shutil.copytree(CHECKOUT / "docker", root / "docker")
    doctor = MODELS / "doctor"
    shutil.copytree(CHECKOUT / doctor, root / doctor, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / MODELS / "__init__.py", root / MODELS / "__init__.py")

"""What stands for GitHub's own actions on this machine? Folders for artifacts and pages; what needs no work is nothing.

In: the name of an action and its inputs. Out: files moved as the action would move them. An action that has no stand-in
is an error, so that a new one is thought about.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class StandIns:
    def __init__(self, folder: Path, checkout: Path) -> None:
        self.artifacts, self.pages, self.checkout = folder / "artifacts", folder / "pages", checkout
        self._known: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "actions/checkout": lambda given: "this checkout",
            "actions/setup-python": lambda given: "this machine's own Python",
            "actions/cache": lambda given: "this machine's own cache",
            "actions/cache/restore": lambda given: "the state folder of this rehearsal",
            "actions/cache/save": lambda given: "the state folder of this rehearsal",
            "sigstore/cosign-installer": lambda given: "what the machine has",
            "actions/upload-artifact": self._upload,
            "actions/download-artifact": self._download,
            "actions/upload-pages-artifact": self._publish,
            "actions/deploy-pages": lambda given: f"{self.pages / 'index.html'}",
        }

    def names(self) -> set[str]:
        return set(self._known)

    def act(self, uses: str, given: Mapping[str, Any]) -> str:
        return self._known[uses](given)

    def _upload(self, given: Mapping[str, Any]) -> str:
        patterns = [line.strip() for line in str(given["path"]).splitlines() if line.strip()]
        found = [path for pattern in patterns for path in sorted(self.checkout.glob(pattern))]
        if not found:
            if given.get("if-no-files-found") == "error":
                raise FileNotFoundError(f"no file for the artifact {given['name']}: {patterns}")
            return "nothing to keep"
        root = Path(os.path.commonpath([self.checkout / pattern for pattern in patterns]))  # found or not
        target = self.artifacts / str(given["name"])
        for path in found:
            _copy(path, target / path.relative_to(root.parent if root.is_file() else root))
        return f"{len(found)} paths in {target}"

    def _download(self, given: Mapping[str, Any]) -> str:
        wanted = sorted(self.artifacts.glob(str(given.get("pattern") or given["name"])))
        if not wanted:
            raise FileNotFoundError(f"no artifact {given.get('pattern') or given['name']}")
        for artifact in wanted:
            _copy(artifact, self.checkout / str(given.get("path", ".")))
        return f"{', '.join(one.name for one in wanted)} into {given.get('path', '.')}"

    def _publish(self, given: Mapping[str, Any]) -> str:
        shutil.rmtree(self.pages, ignore_errors=True)
        _copy(self.checkout / str(given["path"]), self.pages)
        return str(self.pages)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    else:
        raise FileNotFoundError(f"{source}: no such file")

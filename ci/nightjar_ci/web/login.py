"""Who are we at a registry of images? What `docker login` has left, in its file or in a credential helper."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

from nightjar_ci.settings import read_settings

DOCKER_HUB = "registry-1.docker.io"
_HUB_KEY = "https://index.docker.io/v1/"
_HELPER_TIMEOUT_S = 30


def read_login(host: str) -> str | None:
    """What `docker login` has left for a registry, as an `Authorization` header; None where there is nothing.

    Args:
        host: of the registry, with its port.
    """
    try:
        known = json.loads((read_settings().docker_config_dir / "config.json").read_text(encoding="utf-8"))
        names = (_HUB_KEY, host) if host == DOCKER_HUB else (host, f"https://{host}")
        for name in names:
            if entry := known.get("auths", {}).get(name, {}).get("auth"):
                return f"Basic {entry}"
            helper = known.get("credHelpers", {}).get(name) or known.get("credsStore")
            if helper and (found := _ask_helper(helper, name)):
                return found
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # no file, or one that docker itself could not read either
    return None


def _ask_helper(helper: str, name: str) -> str | None:
    program = f"docker-credential-{Path(helper).name}"
    try:
        done = subprocess.run(
            [program, "get"], input=name, capture_output=True, text=True, check=False, timeout=_HELPER_TIMEOUT_S
        )
        answer = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    user, secret = answer.get("Username"), answer.get("Secret")
    return f"Basic {base64.b64encode(f'{user}:{secret}'.encode()).decode('ascii')}" if user and secret else None

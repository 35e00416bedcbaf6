"""Registry credentials that `docker login` saved, in its configuration file or in a credential helper."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

from nightjar_ci.settings import read_settings

DOCKER_HUB = "registry-1.docker.io"
_NAMES = {DOCKER_HUB: ("https://index.docker.io/v1/", DOCKER_HUB)}  # of a registry in docker's file
_HELPER_TIMEOUT_S = 30


def read_login(host: str) -> str | None:
    """The saved login of a registry as an `Authorization` header; None if there is none."""
    try:
        config = json.loads((read_settings().docker_config_dir / "config.json").read_text(encoding="utf-8"))
        for name in _NAMES.get(host, (host, f"https://{host}")):
            if entry := config.get("auths", {}).get(name, {}).get("auth"):
                return f"Basic {entry}"
            helper = config.get("credHelpers", {}).get(name) or config.get("credsStore")
            if helper and (authorization := _run_helper(helper, name)):
                return authorization
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # there is no file, or docker could not read it either
    return None


def _run_helper(helper: str, name: str) -> str | None:
    program = f"docker-credential-{Path(helper).name}"
    try:
        done = subprocess.run(
            [program, "get"], input=name, capture_output=True, text=True, check=True, timeout=_HELPER_TIMEOUT_S
        )
        saved = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    user, secret = saved.get("Username"), saved.get("Secret")
    if not user or not secret:
        return None
    return f"Basic {base64.b64encode(f'{user}:{secret}'.encode()).decode('ascii')}"

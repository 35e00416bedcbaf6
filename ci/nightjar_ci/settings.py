"""Settings from environment variables, the only place where nightjar-ci reads them (docs/reference/environment.md)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nightjar_ci.errors import InputError

STATE_FOLDER = ".nightjar"
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")  # the first that is set is the one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The state folder of nightjar-ci, and its access to services.

    Attributes:
        sandbox: whether jobs on this machine are confined if possible (`auto`), then with network (`network`).
        index_url: the package index that a variable names, which may hold a password; None: uv's own.
    """

    state_dir: Path
    database_url: str
    docker_network: str
    docker_options: tuple[str, ...]
    docker_config_dir: Path
    sandbox: Literal["auto", "network", "off"] = "auto"
    sandbox_writes: tuple[Path, ...] = ()
    sandbox_reads: tuple[Path, ...] = ()
    slurm_options: tuple[str, ...] = ()
    kubernetes_options: tuple[str, ...] = ()
    cache_dir: Path = field(default_factory=lambda: find_cache_dir({}))
    nightly_index: str | None = field(default=None, repr=False)
    public_key: str | None = None
    signer: str | None = None
    signer_issuer: str | None = None
    index_url: str | None = field(default=None, repr=False)
    github_repository: str | None = None
    github_api_url: str = "https://api.github.com"
    github_workflow: str | None = None
    github_run: str | None = None
    github_token: str | None = field(default=None, repr=False)

    @property
    def bisections_dir(self) -> Path:
        return self.state_dir / "bisections"

    @property
    def baseline_nights_dir(self) -> Path:
        return self.state_dir / "baselines"

    @property
    def nights_dir(self) -> Path:
        return self.state_dir / "nights"

    @property
    def worktrees_dir(self) -> Path:
        return self.state_dir / "worktrees"

    @property
    def environments_dir(self) -> Path:
        return self.state_dir / "environments"


def keep_out_of_git(settings: Settings) -> None:
    """Makes git ignore `.nightjar`; a folder with a name of the user's choice is left as it is."""
    path = settings.state_dir / ".gitignore"
    if settings.state_dir.name == STATE_FOLDER and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("*\n", encoding="utf-8")


def find_cache_dir(environ: Mapping[str, str]) -> Path:
    """The folder of the user's caches: `NIGHTJAR_CACHE_DIR`, or `nightjar` in the XDG cache folder.

    >>> str(find_cache_dir({"XDG_CACHE_HOME": "/var/cache/me"}))
    '/var/cache/me/nightjar'
    """
    if own := environ.get("NIGHTJAR_CACHE_DIR"):
        return Path(own).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightjar"


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process.

    Args:
        environ: environment variables; default: the process's.
    """
    environ = os.environ if environ is None else environ
    state_dir = Path(environ.get("NIGHTJAR_STATE_DIR") or STATE_FOLDER).absolute()
    return Settings(
        state_dir=state_dir,
        database_url=environ.get("NIGHTJAR_DATABASE_URL") or f"sqlite:///{state_dir / 'store.sqlite'}",
        docker_network=environ.get("NIGHTJAR_DOCKER_NETWORK") or "none",
        docker_config_dir=Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker"),
        docker_options=_read_options(environ, "NIGHTJAR_DOCKER_OPTIONS"),
        cache_dir=find_cache_dir(environ),
        sandbox=_read_sandbox(environ),
        sandbox_writes=_read_paths(environ, "NIGHTJAR_SANDBOX_WRITES"),
        sandbox_reads=_read_paths(environ, "NIGHTJAR_SANDBOX_READS"),
        slurm_options=_read_options(environ, "NIGHTJAR_SLURM_OPTIONS"),
        kubernetes_options=_read_options(environ, "NIGHTJAR_KUBERNETES_OPTIONS"),
        nightly_index=environ.get("NIGHTJAR_NIGHTLY_INDEX") or None,
        public_key=environ.get("NIGHTJAR_PUBLIC_KEY") or None,
        signer=environ.get("NIGHTJAR_SIGNER") or None,
        signer_issuer=environ.get("NIGHTJAR_SIGNER_ISSUER") or None,
        index_url=next((environ[name] for name in _INDEX_VARIABLES if environ.get(name)), None),
        github_repository=environ.get("GITHUB_REPOSITORY") or None,
        github_api_url=(environ.get("GITHUB_API_URL") or "https://api.github.com").rstrip("/"),
        github_workflow=_find_workflow(environ),
        github_run=environ.get("GITHUB_RUN_ID") or None,
        github_token=environ.get("GITHUB_TOKEN") or None,
    )


def _find_workflow(environ: Mapping[str, str]) -> str | None:
    server, file = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_WORKFLOW_REF")  # OWNER/NAME/PATH@REF
    if not server or not file:
        return None
    return f"{server}/{file.partition('@')[0]}"


def _read_sandbox(environ: Mapping[str, str]) -> Literal["auto", "network", "off"]:
    match environ.get("NIGHTJAR_SANDBOX") or "auto":
        case "auto" | "network" | "off" as mode:
            return mode
        case text:
            raise InputError(f"NIGHTJAR_SANDBOX: expected auto, network or off, found {text!r}.")


def _read_paths(environ: Mapping[str, str], name: str) -> tuple[Path, ...]:
    folders = tuple(Path(part).absolute() for part in environ.get(name, "").split(os.pathsep) if part)
    for folder in folders:
        if not folder.exists():
            raise InputError(f"{name}: {folder} does not exist.", "make it, or take it out of the list")
    return folders


def _read_options(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = environ.get(name, "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{name}: {error}, found {text!r}.", "quote it like a shell") from None

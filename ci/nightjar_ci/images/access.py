"""Build secrets that give build steps this machine's package index and leave no trace in an image.

In: environment variables of uv, pip, proxies and certificates. Out: the text of a build secret that
`docker/python-layer.sh` sources, and the CA bundle as a second secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.errors import InputError

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
CERTIFICATES_IN_BUILD = "/run/secrets/ca"
PASSED = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_\w+|EXTRA_INDEX_URL|INSECURE_HOST|HTTP_TIMEOUT)"
    r"|NIGHTJAR_NIGHTLY_INDEX|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)|(?i:https?_proxy|no_proxy|all_proxy)"
)
# names of the same setting in uv and pip
SYNONYMS = (
    ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"),
    ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
)


def find_certificates(environ: Mapping[str, str]) -> Path | None:
    """The CA bundle that this machine is configured to use; None for the image's own."""
    for name in CERTIFICATE_VARIABLES:
        if value := environ.get(name):
            if not Path(value).is_file():
                raise InputError(f"{name}: {value!r} is not a file; expected a CA bundle.", f"correct or unset {name}")
            return Path(value)
    return None


def render_access(environ: Mapping[str, str], *, certificates: bool) -> str:
    """Shell exports that point uv and pip in a build at this machine's index.

    Args:
        environ: variables of this machine. Indexes in local folders are dropped, since no build step can read them.
        certificates: whether a CA bundle is mounted, too.

    >>> print(render_access({"PIP_INDEX_URL": "https://index.example/root"}, certificates=False), end="")
    export PIP_INDEX_URL=https://index.example/root
    export UV_DEFAULT_INDEX=https://index.example/root
    """
    exports = {
        name: urls for name, value in environ.items() if PASSED.fullmatch(name) and (urls := _without_folders(value))
    }
    for names in SYNONYMS:
        setting = next((exports[name] for name in names if name in exports), None)
        if setting is not None:
            exports.setdefault(names[0], setting)
            exports.setdefault(names[-1], setting)
    if certificates:
        exports |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT"), CERTIFICATES_IN_BUILD)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(exports.items()))


@contextmanager
def open_secrets(environ: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """The build secrets by id, as temporary files that only this user can read."""
    certificates = find_certificates(environ)
    with TemporaryDirectory(prefix="nightjar-secrets-") as folder:
        index = Path(folder, "index")
        index.touch(mode=0o600)
        index.write_text(render_access(environ, certificates=certificates is not None), encoding="utf-8")
        secrets = {"index": index}
        if certificates is not None:
            secrets["ca"] = certificates
        yield secrets


def _without_folders(value: str) -> str:
    return " ".join(part for part in value.split() if not part.startswith(("file:", "/", ".")))

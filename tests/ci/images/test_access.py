import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.images.build import find_certificates, open_secrets, render_access

MIRROR = "http://user:pass@127.0.0.1:1/wheels"


def read_exports(text: str) -> dict[str, str]:
    script = f"{text}\nenv -0"
    done = subprocess.run(["bash", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    pairs = (pair.partition("=") for pair in done.stdout.decode().split("\0") if pair)
    return {
        name: value for name, _, value in pairs if name.startswith(("UV_", "PIP_", "SSL_")) or "proxy" in name.lower()
    }


def test_an_index_of_pip_is_given_to_uv_and_the_other_way_round() -> None:
    assert read_exports(render_access({"PIP_INDEX_URL": MIRROR}, certificates=False)) == {
        "PIP_INDEX_URL": MIRROR,
        "UV_DEFAULT_INDEX": MIRROR,
    }
    assert read_exports(render_access({"UV_DEFAULT_INDEX": MIRROR}, certificates=True)) == {
        "PIP_CERT": "/run/secrets/ca",
        "PIP_INDEX_URL": MIRROR,
        "SSL_CERT_FILE": "/run/secrets/ca",
        "UV_DEFAULT_INDEX": MIRROR,
    }


def test_indexes_in_folders_of_this_machine_and_other_variables_are_left_out() -> None:
    environ = {
        "PIP_EXTRA_INDEX_URL": f"file:///opt/wheels {MIRROR}",
        "PIP_FIND_LINKS": "/opt/wheels",
        "PIP_CERT": "/etc/ca.pem",
        "UV_CACHE_DIR": "/cache",
        "HOME": "/root",
        "https_proxy": "http://proxy:3128",
    }
    exports = read_exports(render_access(environ, certificates=False))
    assert exports == {"PIP_EXTRA_INDEX_URL": MIRROR, "UV_INDEX": MIRROR, "https_proxy": "http://proxy:3128"}


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="ascii", exclude_categories=("Cc", "Zs")), min_size=1))
def test_no_password_is_expanded_or_run_by_the_shell(password: str) -> None:
    url = f"http://user:{password}@127.0.0.1:1/wheels"
    assert read_exports(render_access({"UV_DEFAULT_INDEX": url}, certificates=False))["UV_DEFAULT_INDEX"] == url


def test_secret_is_readable_by_its_user_only_and_gone_afterwards(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    with open_secrets({"PIP_CERT": str(bundle), "PIP_INDEX_URL": MIRROR}) as secrets:
        assert secrets["ca"] == bundle
        index = secrets["index"]
        assert index.stat().st_mode & 0o777 == 0o600
        assert MIRROR in index.read_text()
    assert not index.exists()
    assert bundle.exists()


def test_certificates_that_do_not_exist_are_refused_by_variable(tmp_path: Path) -> None:
    assert find_certificates({}) is None
    with pytest.raises(InputError, match="REQUESTS_CA_BUNDLE: '/nowhere' is not a file"):
        find_certificates({"REQUESTS_CA_BUNDLE": "/nowhere"})

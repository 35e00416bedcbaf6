"""Which variables pass to foreign code, and which names and values never do."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.environments.prepare import prepare
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.untrusted.inheritance import (
    ALLOWED,
    FETCHING,
    check_passed,
    inherit,
    inherit_for_fetching,
    looks_secret,
    select,
)
from tests.places import ROOT

SECRET_NAMES = (
    *("GITHUB_TOKEN", "NIGHTJAR_DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY"),
    *("PGPASSWORD", "PIP_PASSWD", "UV_PUBLISH_TOKEN", "UV_INDEX_MINE_PASSWORD", "JAX_API_KEY", "TF_VAR_db_password"),
    *("HF_TOKEN", "HF_TOKENS", "HFTOKEN2", "SLURM_JWT", "SSH_AUTH_SOCK", "CARGO_REGISTRIES_MINE_TOKEN", "XDG_COOKIE"),
    *("NVIDIA_CREDENTIALS", "CUDA_PASSPHRASE", "XLA_PAT", "SENTRY_DSN", "GRPC_AUTH", "JAX_PRIVATE_KEY", "ApiKey"),
)
USEFUL_NAMES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "XLA_FLAGS", "JAX_PLATFORMS", "NO_PROXY"),
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"),
    *("TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"),
    *("PYTHONPATH", "PYTHONFAULTHANDLER", "VIRTUAL_ENV", "COVERAGE_PROCESS_START", "HF_HOME", "SLURM_PROCID"),
    *("TOKENIZERS_PARALLELISM", "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "UV_CACHE_DIR", "PIP_INDEX_URL"),
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_looks_like_a_secret_does_not_pass_and_is_refused_in_pass_env(name: str) -> None:
    assert inherit({name: "value"}) == {}
    assert inherit({name: "value"}, (f"{name[:3]}*",)) == {}
    assert looks_secret(name)
    with pytest.raises(ValueError, match=f"{name} looks like a secret: name it in 'secrets'"):
        check_passed(name)


@pytest.mark.parametrize("name", USEFUL_NAMES)
def test_what_a_workload_needs_passes(name: str) -> None:
    assert inherit({name: "value"}) == {name: "value"}


@given(st.sampled_from([one for one in ALLOWED if one.endswith("*")]), st.from_regex(r"[A-Z0-9_]{0,8}", fullmatch=True))
def test_no_pattern_passes_a_token(pattern: str, middle: str) -> None:
    for word in ("TOKEN", "PASSWORD", "SECRET_KEY", "API_KEY", "DATABASE_URL"):
        assert inherit({f"{pattern[:-1]}{middle}_{word}": "value"}, (pattern,)) == {}


@pytest.mark.parametrize(
    "name", ["GITHUB_ENV", "GITHUB_OUTPUT", "DOCKER_HOST", "TF_VAR_region", "NIGHTJAR_STATE_DIR", "MINE"]
)
def test_other_names_do_not_pass_unless_the_matrix_names_them(name: str) -> None:
    assert inherit({name: "value"}) == {}
    assert inherit({name: "value"}, (name,)) == {name: "value"}


@pytest.mark.parametrize(
    "value", ["https://me:s3cret@index.example/root", "http://ghp_1@github.com/x", "me:s3cret@proxy:3128"]
)
def test_an_address_with_a_user_or_password_passes_only_where_packages_are_fetched(value: str) -> None:
    given = {"UV_DEFAULT_INDEX": value, "HTTPS_PROXY": value, "JAX_COORDINATOR_ADDRESS": value}
    assert inherit(given) == {}
    assert inherit_for_fetching(given) == {"UV_DEFAULT_INDEX": value, "HTTPS_PROXY": value}
    assert inherit({"HTTPS_PROXY": "http://proxy:3128"}) == {"HTTPS_PROXY": "http://proxy:3128"}


def test_a_container_gets_only_what_the_matrix_names() -> None:
    given = {"PATH": "/bin", "MYLAB_DATA": "/data", "MYLAB_TOKEN": "t0ken", "HF_TOKEN": "hf_1"}
    assert select(given, ("MYLAB_*", "HF_TOKEN")) == {"MYLAB_DATA": "/data", "HF_TOKEN": "hf_1"}


@pytest.mark.parametrize("name", ["", "*", "1A", "A-B", "A*B", "A B", "A=1"])
def test_what_is_not_the_name_of_a_variable_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected the name of a variable"):
        check_passed(name)


def test_the_documentation_lists_exactly_what_passes() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    section = page.partition("## Passed on to foreign code")[2].partition("\n## ")[0]
    table, _, rest = section.partition("A pattern never passes")
    assert re.findall(r"`([A-Za-z_0-9]+\*?)`", table) == list(ALLOWED)
    assert set(FETCHING) - set(ALLOWED) <= set(re.findall(r"`([A-Z_*]+)`", rest))


UV = f"""#!{sys.executable}
import os, pathlib, sys
pathlib.Path(__file__).with_name("environ").write_text(repr(dict(os.environ)))
sys.exit("error: 401 at " + os.environ["UV_DEFAULT_INDEX"] + " as " + os.environ["UV_INDEX_MINE_PASSWORD"])
"""


def test_a_build_reaches_its_index_without_the_other_secrets_and_its_failure_names_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_0123456789")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:first-passw0rd@index.example/root")
    monkeypatch.setenv("UV_INDEX_MINE_PASSWORD", "second-passw0rd")
    with pytest.raises(EnvironmentFailedError) as caught:
        prepare("uv:jax==0.1")
    environ = (tmp_path / "environ").read_text()
    assert "first-passw0rd" in environ
    assert "second-passw0rd" in environ
    assert "ghp_0123456789" not in environ
    assert "passw0rd" not in str(caught.value)
    assert "401 at https://***@index.example/root as ***" in str(caught.value)

import json
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import NightjarError
from nightjar_ci.jax_nightly.day_index import render_page, serve_day
from nightjar_ci.jax_nightly.days import read_days
from nightjar_ci.web.package_index import File, parse_page
from tests.ci.jax_nightly.wheels import fill_day, fill_jax, serve


def lock(index: tuple[str, ...], default: str, cache: Path, *requirements: str) -> subprocess.CompletedProcess[str]:
    argv = [
        str(Path(sys.executable).parent / "uv"),
        "pip",
        "compile",
        "--quiet",
        "--no-python-downloads",
        "--no-header",
        "--no-annotate",
        "-",
    ]
    argv += ["--python-version", "3.13", "--python-platform", "linux", "--exclude-newer", "2026-11-21T00:00:00Z"]
    argv += [*index, "--default-index", default, "--cache-dir", str(cache)]
    stdin = "".join(f"{requirement}\n" for requirement in requirements)
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)


def test_uv_takes_the_day_though_newer_files_are_excluded_and_no_file_has_a_time(tmp_path: Path) -> None:
    version = fill_day(tmp_path / "nightly", "2026-11-20")
    fill_day(tmp_path / "nightly", "2026-11-21")
    fill_jax(tmp_path / "default", "1.0", "f" * 40)
    with serve(tmp_path / "nightly") as nightly, serve(tmp_path / "default") as default:
        days = read_days(nightly)
        with serve_day(days[0], default) as (index, _):
            done = lock(index, default, tmp_path / "cache", f"jax=={version}")
            assert (done.returncode, done.stdout) == (0, f"jax=={version}\njaxlib=={version}\n"), done.stderr
            assert lock(index, default, tmp_path / "cache", "jax").stdout == "jax==1.0\njaxlib==1.0\n"
        with serve_day(days[1], default) as (index, _):
            assert lock(index, default, tmp_path / "cache", f"jax=={version}").returncode == 1


@given(st.booleans(), st.none() | st.just("a" * 64), st.none() | st.datetimes(timezones=st.just(UTC)))
def test_files_have_a_url_and_an_upload_time(has_metadata: bool, sha256: str | None, uploaded: datetime | None) -> None:
    file = File(
        name="jax-1.0-py3-none-any.whl", uploaded=uploaded, yanked=False, url="https://host/jax-1.0-py3-none-any.whl",
        sha256=sha256, has_metadata=has_metadata,
    )  # fmt: skip
    page = json.loads(json.dumps(render_page("jax", (file,), "2026-11-20")))
    (rendered,) = page["files"]
    assert rendered["url"] == file.url
    assert datetime.fromisoformat(rendered["upload-time"]) == (uploaded or datetime(2026, 11, 20, tzinfo=UTC))
    assert rendered["hashes"] == ({} if sha256 is None else {"sha256": sha256})


def test_a_page_that_ends_in_a_declaration_is_an_error_and_no_bug() -> None:
    said = nullcontext() if sys.version_info >= (3, 14) else pytest.raises(NightjarError, match="cannot read")
    with said:  # Python 3.14 passes over it
        assert parse_page("jax", b"<![4<a{>", "text/html", "https://host/jax/") == []

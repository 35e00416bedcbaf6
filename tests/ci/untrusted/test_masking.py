"""What a mask finds: in texts, and in files of every kind."""

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.executors.process import Log
from nightjar_ci.untrusted.masking import NO_MASK, Mask, make_mask

VALUE = 'pa/ss+wörd "42"\\'
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "spelling",
    [
        VALUE,
        quote(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        quote(VALUE, safe="").replace("%2F", "%2f").replace("%C3%B6", "%c3%b6"),
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
    ],
)
def test_every_spelling_of_a_value_becomes_stars(spelling: str) -> None:
    assert Mask((VALUE,)).text(f"before {spelling} after {spelling}") == "before *** after ***"


@given(st.binary(max_size=9), st.binary(max_size=80), st.booleans())
def test_a_value_in_base64_is_found_anywhere_and_across_lines(before: bytes, after: bytes, wrapped: bool) -> None:
    value = "hf_0123456789abcdefghijABCDEFGHIJ"
    encode = base64.encodebytes if wrapped else base64.urlsafe_b64encode
    text = Mask((value,)).text(encode(b"x" * 40 + before + value.encode() + after).decode()).replace("\n", "")
    whole, _, _ = text.partition("***")
    assert "***" in text
    rest = base64.b64decode(whole + "=" * (-len(whole) % 4), altchars=b"-_") if len(whole) % 4 != 1 else b""
    assert value[:2].encode() not in rest.removeprefix(b"x" * 40 + before)


def test_each_line_of_a_secret_is_masked_but_not_its_shortest() -> None:
    mask = Mask((KEY + "abc\n",))
    assert mask.text("MIIEvQIBADANBgkq\n  hkiG9w0BAQEFAASC abc") == "***\n  *** abc"
    assert mask.text(json.dumps({"key": KEY})).count("MII") == 0


def test_without_secrets_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("text")
    assert NO_MASK.text("text") == "text"
    assert NO_MASK.clean(tmp_path) == ()
    assert (tmp_path / "log").read_text() == "text"


def test_a_folder_holds_no_value_afterwards(tmp_path: Path) -> None:
    deep = tmp_path / "of s3cr3t-value" / "deep"
    deep.mkdir(parents=True)
    (deep / "s3cr3t-value.txt").write_text("one s3cr3t-value\ntwo s3cr3t-value")
    (deep / "***.txt").write_text("of that name already")
    (deep / "capture.pb").write_bytes(b"\0\x0c" + b"s3cr3t-value" + b"\0end")
    (deep / "big").write_bytes(b"x" * 3_000_000 + b"s3cr3t-value" + b"y" * 3_000_000)
    (deep / "link").symlink_to("/nowhere/s3cr3t-value")
    os.mkfifo(deep / "fifo")
    assert Mask(("s3cr3t-value",)).clean(tmp_path) == ()
    here = tmp_path / "of ***" / "deep"
    assert sorted(path.name for path in here.iterdir()) == ["***.txt", "***.txt.1", "big", "capture.pb", "fifo"]
    assert (here / "***.txt.1").read_text() == "one ***\ntwo ***"
    assert (here / "capture.pb").read_bytes() == b"\0\x0c" + b"*" * 12 + b"\0end"
    assert (here / "big").read_bytes() == b"x" * 3_000_000 + b"***" + b"y" * 3_000_000


def test_what_lies_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("s3cr3t-value")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "outside")
    os.link(tmp_path / "outside", tmp_path / "job" / "hard")
    Mask(("s3cr3t-value",)).clean(tmp_path / "job")
    assert (tmp_path / "outside").read_text() == "s3cr3t-value"
    assert (tmp_path / "job" / "hard").read_text() == "***"


@pytest.mark.parametrize("ahead", [0, 65_530, 2**20 - 3, 2**20 + 65_530])
def test_a_log_is_masked_while_it_is_written_however_long_its_line(tmp_path: Path, ahead: int) -> None:
    log = Log(tmp_path, "log", Mask(("s3cr3t-value",)))
    with log.file as file:
        file.write(b"first s3cr3t-value\r")
        file.write(b"x" * ahead + b"s3cr3t-va")
        file.write(b"lue" + b"y" * 2_000_000)
    log.finish()
    assert (tmp_path / "log").read_bytes() == b"first ***\r" + b"x" * ahead + b"***" + b"y" * 2_000_000


def test_a_long_log_with_secrets_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    log = Log(tmp_path, "log", Mask(("s3cr3t-value",)))
    with log.file as file:
        for number in range(400_000):
            file.write(b"%07d: the secret is s3cr3t-value, as is known in this line\n" % number)
    log.finish()
    text = (tmp_path / "log").read_bytes()
    assert len(text) < 17 * 2**20
    assert b"s3cr3t" not in text
    assert text.startswith(b"0000000: the secret is ***,")
    assert text.rstrip().splitlines()[-1].startswith(b"0399999: ")
    assert b"[nightjar left out " in text


def test_a_masked_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo s3cr3t-value")
    (tmp_path / "run.sh").chmod(0o751)
    Mask(("s3cr3t-value",)).clean(tmp_path)
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o751


@pytest.mark.parametrize(
    ("value", "said"), [("", "is not set"), ("abc", "has 3 characters: expected at least 4"), ("  \n  ", "has 5 ")]
)
def test_a_missing_or_too_short_secret_is_named_and_its_value_is_not(value: str, said: str) -> None:
    with pytest.raises(InputError, match=f"the secret MINE {said}") as caught:
        make_mask(["MINE"], {"MINE": value})
    assert value not in caught.value.message or not value


def test_a_mask_does_not_show_its_values() -> None:
    assert "s3cr3t" not in repr(Mask(("s3cr3t-value",)))


@pytest.mark.parametrize("value", ["abcd", "abcde"])
def test_a_secret_of_four_characters_or_more_is_masked(value: str) -> None:
    assert make_mask(["TOKEN"], {"TOKEN": value}).text(f"x{value}x") == "x***x"

from __future__ import annotations

import pytest

from nightjar_ci.environments.local_requirements import parse_local


@pytest.mark.parametrize("text", ["./" + "x" * 300, "~nobody-of-that-name/package"])
def test_what_cannot_be_a_path_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a path"):
        parse_local(text)

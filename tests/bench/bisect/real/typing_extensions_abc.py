"""`isinstance` with an abstract class that a protocol inherits from raises nothing (python/typing_extensions#207)."""

from collections.abc import Sized

import typing_extensions


class Foo(Sized, typing_extensions.Protocol):
    """As in the issue."""


assert not isinstance(1, Sized)

"""The log of a command: a file that it writes itself or, where it has secrets, a pipe whose lines we mask and write.

So a log holds no secret at any time, also where we are killed before the command has ended. What spans lines, such as
base64 that is broken into lines, is masked when it has ended, with all other files.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import BinaryIO

from nightjar_ci.executors import supervisor
from nightjar_ci.untrusted.files import create_untrusted
from nightjar_ci.untrusted.masking import Mask

_CHUNK_BYTES = 65536
_LONGEST_LINE_BYTES = 2**20  # a longer one is cut, less what may be the beginning of a secret
_JOIN_S = 5.0  # the command has ended, and all that came from it: the pipe has an end


class Log:
    """A log that a command is about to write.

    Attributes:
        file: what the command gets as stdout or stderr; close it once the command has it.

    Raises:
        OSError: the log cannot be written.
    """

    def __init__(self, folder: Path, name: str, mask: Mask) -> None:
        self._thread: threading.Thread | None = None
        self.file: BinaryIO = create_untrusted(folder, name)
        if mask.values:
            log, (source, target) = self.file, os.pipe()
            self.file = os.fdopen(target, "wb", buffering=0)
            self._thread = threading.Thread(target=_copy, args=(source, log, mask), daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits until all that the command wrote is in the log."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)


def _copy(source: int, log: BinaryIO, mask: Mask) -> None:
    """Copies lines until the pipe ends; where the log cannot be written, the command gets SIGPIPE."""
    with contextlib.suppress(OSError), log, os.fdopen(source, "rb", buffering=0) as pipe:
        kept = supervisor.Log(log.fileno())  # of a long log, the head and the tail
        held = b""
        while chunk := pipe.read(_CHUNK_BYTES):
            held += chunk
            whole = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
            if not whole and len(held) > _LONGEST_LINE_BYTES:
                held = mask.bytes(held)
                whole = len(held) - mask.longest
            if whole > 0:
                kept.write(mask.bytes(held[:whole]))
                held = held[whole:]
        kept.write(mask.bytes(held))
        kept.close()

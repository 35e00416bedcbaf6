"""The log of a command: a file that it writes itself or, if it has secrets, a pipe whose lines we mask and write.

So a log never holds a secret, even if we are killed before the command ends. A secret that spans lines, such as
line-wrapped base64, is masked after the command ends, with all other files.
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
_LONGEST_LINE_BYTES = 2**20  # a longer line is cut, minus a possible beginning of a secret
_JOIN_S = 5.0  # the command and its child processes have ended, so the pipe ends, too


class Log:
    """A log that a command will write.

    Attributes:
        file: stdout or stderr of the command; close it once the command has it.

    Raises:
        OSError: the log cannot be written.
    """

    def __init__(self, folder: Path, name: str, mask: Mask, keep: str = "") -> None:
        self._thread: threading.Thread | None = None
        self.file: BinaryIO = create_untrusted(folder, name)
        if mask.values:
            log, (source, target) = self.file, os.pipe()
            self.file = os.fdopen(target, "wb", buffering=0)
            self._thread = threading.Thread(target=_copy, args=(source, log, mask, keep), daemon=True)
            self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join(_JOIN_S)


def _copy(source: int, log: BinaryIO, mask: Mask, keep: str) -> None:
    """Copies lines until the pipe ends; if the log cannot be written, the command gets SIGPIPE."""
    with contextlib.suppress(OSError), log, os.fdopen(source, "rb", buffering=0) as pipe:
        bounded_log = supervisor.Log(log.fileno(), keep.encode())  # keeps the head and the tail of a long log
        pending = b""
        while chunk := pipe.read(_CHUNK_BYTES):
            pending += chunk
            complete = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
            if not complete and len(pending) > _LONGEST_LINE_BYTES:
                pending = mask.bytes(pending)
                complete = len(pending) - mask.longest
            if complete > 0:
                bounded_log.write(mask.bytes(pending[:complete]))
                pending = pending[complete:]
        bounded_log.write(mask.bytes(pending))
        bounded_log.close()

"""Compiles one program after the other in one process, which starts and imports JAX once: `python -m ... < PROGRAMS`.

In: on stdin one JSON list a line, the arguments of `nightjar-models compile`. Out: the folders of `--out`, each with
the seconds of CPU that its program took in `cpu_s`; where the compiler refuses one, `refused` says why.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Compiles what stdin lists; the first program's seconds hold the start of the process."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from nightjar_models.cli import app

    begin = 0.0
    for line in sys.stdin:
        arguments = json.loads(line)
        out = Path(arguments[arguments.index("--out") + 1])
        print(f"compiling: {' '.join(arguments)}", file=sys.stderr, flush=True)
        try:
            app(["compile", *arguments], standalone_mode=False)
        except Exception as error:  # the others are of interest all the same
            out.mkdir(parents=True, exist_ok=True)
            (out / "refused").write_text(getattr(error, "message", f"{type(error).__name__}: {error}"))
        end = sum(os.times()[:4])  # with that of ptxas, a child
        (out / "cpu_s").write_text(str(end - begin))
        begin = end


if __name__ == "__main__":
    main()

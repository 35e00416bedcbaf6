"""Which bytes make a reader of traces crash? `nox -s fuzz -- --seconds 300` feeds them by coverage (atheris).

Whatever a reader makes of damaged bytes, it is a result or an `InputError`; anything else stops the run with the input
in a `crash-*` file, which then becomes a test. The first inputs are small valid files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["nightjar_profiling"]):
    from nightjar_profiling.attribute import attribute
    from nightjar_profiling.collective_kinds import find_collectives
    from nightjar_profiling.errors import InputError
    from nightjar_profiling.readers.hlo import read_program
    from nightjar_profiling.readers.xplane import read_raw

from tests.profiling.builders import TRAINING, hlo_proto, training_trace

SCRATCH = Path(tempfile.mkdtemp(prefix="nightjar-fuzz-"))


def fuzz_xplane(data: bytes) -> None:
    """An XSpace file."""
    path = SCRATCH / "fuzz.xplane.pb"
    path.write_bytes(data)
    read_raw(path)


def fuzz_hlo(data: bytes) -> None:
    """A serialized HloProto, and what is told of its instructions."""
    program = read_program(data, 1, "fuzz")
    attribute(program, program.instructions)
    find_collectives(program)


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], bytes]]] = {
    "xplane": (fuzz_xplane, lambda: training_trace().space.SerializeToString()),
    "hlo": (fuzz_hlo, lambda: hlo_proto(TRAINING).SerializeToString()),
}


def main() -> None:
    """Fuzzes one target for so many seconds."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="xplane")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: 60)")
    options = parser.parse_args()
    read, example = TARGETS[options.target]

    def once(data: bytes) -> None:
        try:
            read(data)
        except InputError as error:
            if not str(error):
                raise RuntimeError("an error without a message") from error

    corpus = SCRATCH / options.target
    corpus.mkdir()
    (corpus / "valid").write_bytes(example())
    limits = [f"-max_total_time={options.seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Which bytes make a reader crash? `nox -s fuzz -- --seconds 300` feeds them by coverage (atheris).

Whatever a reader makes of damaged bytes, it is a result or an error with a message of its package; anything else stops
the run with the input in a `crash-*` file, which then becomes a test. The first inputs are small valid files
(`traces.py`, `nights.py`). Without
`--target` all targets have their turn, each in a process of its own.
"""

import argparse
import subprocess
import sys

import atheris

with atheris.instrument_imports(include=["nightjar_profiling", "nightjar_ci"]):
    from nightjar_ci.errors import NightjarError
    from nightjar_profiling.errors import InputError
    from tests.fuzz import nights, traces

    TARGETS = {**traces.TARGETS, **nights.TARGETS}

SHORTEST_INPUT = 4096  # the most that an input may grow to, where the first ones are no longer


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, help="only this one (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="how long each (default: 60)")
    options = parser.parse_args()
    if options.target is None:
        command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(options.seconds), "--target"]
        ended = {target: subprocess.run([*command, target], check=False).returncode for target in TARGETS}
        failed = [target for target, code in ended.items() if code]
        print(f"fuzz: {', '.join(f'{target} failed' for target in failed) or 'no crash'}", file=sys.stderr)
        return 1 if failed else 0
    read, examples = TARGETS[options.target]

    def once(data: bytes) -> None:
        try:
            read(data)
        except (InputError, NightjarError) as error:
            if not str(error):
                raise RuntimeError("an error without a message") from error

    corpus = traces.SCRATCH / options.target
    corpus.mkdir()
    longest = SHORTEST_INPUT
    for number, example in enumerate(examples()):
        read(example)  # a first input that is refused would lead nowhere
        (corpus / f"valid-{number}").write_bytes(example)
        longest = max(longest, len(example) + 512)
    limits = [f"-max_total_time={options.seconds}", "-timeout=60", "-rss_limit_mb=4096", f"-max_len={longest}"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], once)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

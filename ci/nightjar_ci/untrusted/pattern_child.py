"""The process that searches for a pattern; `pattern_search.py` starts it, and kills it at its deadline.

In: on stdin one line of JSON, `[mode, pattern]`, and then the text. Out: a line of JSON for each thing found. It runs
alone, by path, so that it starts in a few milliseconds.
"""

import json
import re
import sys

MOST_BYTES = 256 * 2**20  # of output: groups inside groups make more of a text than there is
MOST_NAMES = 5


def main() -> int:
    """Searches what stdin holds."""
    mode, pattern = json.loads(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read().decode("utf-8", errors="surrogatepass")
    if mode == "lines":
        compiled, written = re.compile(pattern), 0
        for number, line in enumerate(text.split("\n"), start=1):
            if (match := compiled.search(line.rstrip("\r"))) is not None:
                groups = {name: value for name, value in match.groupdict().items() if value is not None}
                written += sys.stdout.write(json.dumps([number, groups]) + "\n")
                if written > MOST_BYTES:
                    sys.exit(f"its groups hold more than {MOST_BYTES:,} bytes")
        return 0
    found: dict[str, None] = {}
    last = None
    for match in re.finditer(pattern, text, re.MULTILINE | re.IGNORECASE):
        last = match[1]
        if mode == "names":
            found[last] = None
            if len(found) == MOST_NAMES:
                break
    for one in found if mode == "names" else [last]:
        sys.stdout.write(json.dumps(one) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

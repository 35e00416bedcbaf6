"""The process that searches for a pattern; `pattern_search.py` starts it, and kills it at its deadline.

In: on stdin one line of JSON, `[mode, pattern]`, and then the text. Out: a line of JSON for each match. It is started
by its path and imports nothing of ours, so that it starts in a few milliseconds.
"""

import json
import re
import sys

MOST_BYTES = 256 * 2**20  # of output: nested groups repeat parts of the text
MOST_NAMES = 5


def main() -> int:
    mode, pattern = json.loads(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read().decode("utf-8", errors="surrogatepass")
    if mode == "lines":
        compiled, written = re.compile(pattern), 0
        for number, line in enumerate(text.split("\n"), start=1):
            for match in filter(None, map(compiled.search, line.split("\r"))):  # a progress bar returns to its start
                groups = {name: value for name, value in match.groupdict().items() if value is not None}
                written += sys.stdout.write(json.dumps([number, groups]) + "\n")
                if written > MOST_BYTES:
                    sys.exit(f"its groups hold more than {MOST_BYTES:,} bytes")
        return 0
    names: dict[str, None] = {}
    last = None
    for match in re.finditer(pattern, text, re.MULTILINE | re.IGNORECASE):
        last = match[1]
        if mode == "names":
            names[last] = None
            if len(names) == MOST_NAMES:
                break
    for group in names if mode == "names" else [last]:
        sys.stdout.write(json.dumps(group) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

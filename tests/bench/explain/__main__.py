"""Does `nightjar-models explain` name the line and the kind of a difference?

`nox -s bench_explain` plants sixty differences in five programs, a third each of another order of a sum, another type
and a fault, and forty changes of the text that change no number. Every third difference is also reduced to a file of
its own. `-- --only attention` runs those of one program.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nightjar_models.errors import ToolError
from nightjar_models.explain.judge import Difference, explain, run_here
from nightjar_models.explain.program import Traced, trace
from nightjar_models.explain.reduce import MOST_LINES, reduce_programs
from tests.bench.table import Row, finish, print_rows

HERE = Path(__file__).parent
KINDS = {"rounding": 20, "numerics": 20, "fault": 20}
REDUCED = 3  # each third difference
MOST_S = 300.0  # of CPU, for one answer


@dataclass(frozen=True, slots=True)
class Planted:
    program: str
    kind: str
    old: str
    new: str

    def write(self, folder: Path, number: int) -> tuple[Path, int]:
        before = (HERE / "programs" / f"{self.program}.py").read_text()
        assert before.count(self.old) == 1, f"{self.program}: {before.count(self.old)} times: {self.old}"
        after = before.replace(self.old, self.new)
        path = folder / f"{self.program}_{number}.py"
        path.write_text(after)
        return path, before[: before.index(self.old)].count("\n") + 1


def read_planted() -> Iterator[Planted]:
    for row in (HERE / "planted.txt").read_text().splitlines()[1:]:
        about, _, change = row.partition(": ")
        old, _, new = change.partition(" ==> ")
        program, kind = about.split()
        yield Planted(program, kind, old, new)


def trace_both(planted: Planted, path: Path) -> list[Traced]:
    original = HERE / "programs" / f"{planted.program}.py"
    return [trace(f"{one}:loss", f"{one}:arguments", ()) for one in (original, path)]


def is_reduced(left: Traced, right: Traced, found: Difference) -> bool:
    try:
        return len(reduce_programs(left, right, found).splitlines()) <= MOST_LINES
    except ToolError as error:
        print(f"{found}\n  {error}", file=sys.stderr)
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_explain --", description=__doc__)
    parser.add_argument("--only", help="the differences of one program")
    only = parser.parse_args().only
    right_kind, right_line, counted = Counter[str](), Counter[str](), Counter[str]()
    claimed, tried, reduced, longest = 0, 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, planted in enumerate(read_planted()):
            if only not in (None, planted.program):
                continue
            path, line = planted.write(Path(folder), number)
            begin = time.process_time()
            left, right = trace_both(planted, path)
            found = explain(run_here(left), run_here(right), left.results, lambda _: None)
            longest = max(longest, time.process_time() - begin)
            counted[planted.kind] += 1
            if planted.kind == "none":
                claimed += found is not None
                wrong = found is not None
            else:
                where = "" if found is None else found.where.partition(",")[0].partition(":")[2]
                right_kind[planted.kind] += found is not None and found.kind == planted.kind
                right_line[planted.kind] += where == str(line)
                wrong = found is None or found.kind != planted.kind or where != str(line)
                if number % REDUCED == 0 and found is not None:
                    tried += 1
                    reduced += is_reduced(left, right, found)
            if wrong:
                print(f"{planted.program}:{line} {planted.kind}: {planted.new}\n  {found}", file=sys.stderr)
    total = sum(counted[kind] for kind in KINDS)
    rows = [Row(f"{kind}: called so, of {counted[kind]}", right_kind[kind]) for kind in KINDS]
    rows += [
        Row(f"kind right, of {total}", right_kind.total(), goal=0.95 * total, better="higher"),
        Row(f"line right, of {total}", right_line.total(), goal=0.9 * total, better="higher"),
        Row(f"reduced to {MOST_LINES} lines that show it, of {tried}", reduced, goal=0.9 * tried, better="higher"),
        Row(f"differences claimed in {counted['none']} programs without any", claimed, goal=0),
        Row("CPU time of the longest answer", longest, goal=MOST_S, unit="s"),
    ]
    print_rows("explain", rows)
    return finish("bench_explain", rows)


if __name__ == "__main__":
    sys.exit(main())

"""Do the facts of other people's functions change with the program, and with nothing else?

The small programs of `programs/` are compiled for this CPU as they are; rewritten in ten ways that change nothing that
is computed (another file and folder, moved lines, other names, another host); and broken by mutants of one expression,
drawn at random. A mutant counts that still traces and whose StableHLO differs. A fault is named when `nightjar-ci
facts` ends with 1 and prints its line.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.bench.table import Row
from tests.mutants.sites import Mutant, find_mutants
from tests.places import ROOT

PROGRAMS = sorted(path.stem for path in (Path(__file__).parent / "programs").glob("[a-z]*.py"))
FAULTS, SEED = 50, 20261126
REWRITES = "rewrites that change nothing: red"
NAMED = "planted faults: red with the line"
TRACE = """
import hashlib, sys
from nightjar_models.aot.function import find_function, lower_function, make_arguments
text = lower_function(find_function(sys.argv[1] + ":step"), make_arguments(sys.argv[1] + ":make")).as_text()
print(hashlib.sha256(text.encode()).hexdigest())
"""


def rename_locals(text: str) -> str:
    for name in re.findall(r"^ +(\w+) = ", text, re.MULTILINE):
        if _is_local(text, name):
            text = re.sub(rf"\b{name}\b", f"renamed_{name}", text)
    return text


def _is_local(text: str, name: str) -> bool:
    """Whether a name is only ever a variable: assigned, and never a keyword, an attribute or a key."""
    other = (
        rf"\.{name}\b|[\"']{name}[\"']|[(,] *{name}=[^=]|def {name}\b|def \w+\([^)]*\b{name}\b|lambda[^:]*\b{name}\b"
    )
    return bool(re.search(rf"^ +{name} = ", text, re.MULTILINE)) and not re.search(other, text)


def return_by_name(text: str) -> str:
    return re.sub(r"^( +)return (.+)$", r"\1result = \2\n\1return result", text, flags=re.MULTILINE)


def move_lines(text: str) -> str:
    docstring, _, rest = text.partition("\n")
    return (
        docstring + "\n" + "# moved\n" * 30 + rest.replace("\n\n\n", "\n\n\ndef unused(x):\n    return x * 2\n\n\n", 1)
    )


def comment(text: str) -> str:
    return re.sub(r"^( +\w+ = )", r"\n    # what follows\n\1", text, flags=re.MULTILINE)


def decorate_later(text: str) -> str:
    text = re.sub(r"^@(.+)\ndef step\(", r"JIT = \1\n\n\ndef inner(", text, flags=re.MULTILINE)
    return text.replace("\n\n\ndef make(", "\n\n\nstep = JIT(inner)\n\n\ndef make(")


TEXTS: dict[str, Callable[[str], str]] = {
    "renamed variables": rename_locals,
    "results with names": return_by_name,
    "moved lines": move_lines,
    "comments": comment,
    "jitted under another name": decorate_later,
}


def list_goals(quick: bool, folder: Path) -> list[str]:
    return [REWRITES, NAMED]


def measure(quick: bool, folder: Path) -> list[Row]:
    programs = PROGRAMS[: 1 if quick else None]
    folder = folder / "functions"
    with ThreadPoolExecutor(2) as pool:
        plain = dict(zip(programs, pool.map(partial(compile_plain, folder), programs), strict=True))
        rewrites = [(name, out) for name in programs for out in rewrite(name, folder)]
        red = list(pool.map(lambda pair: describe(plain[pair[0]], pair[1]()), rewrites))
        for text in filter(None, red):
            print(f"  red: {text}", flush=True)
        wanted = 5 if quick else FAULTS
        named = list(plant(programs, plain, folder, wanted, pool))
    return [
        Row(REWRITES, sum(map(bool, red)), goal=0, unit=f"of {len(red)}"),
        Row(NAMED, sum(named), goal=round(0.98 * wanted), better="higher", unit=f"of {wanted}"),
    ]


def compile_plain(folder: Path, name: str) -> Path:
    return compile_text(read(name), folder / name / "plain" / f"{name}.py")


def read(name: str) -> str:
    return (Path(__file__).parent / "programs" / f"{name}.py").read_text(encoding="utf-8")


def compile_text(text: str, path: Path, before: Sequence[str] = (), variables: Sequence[tuple[str, str]] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    out = path.parent / "out"
    arguments = (f"{path.name}:step", "--args", f"{path.name}:make", "--out", str(out))
    run([*before, sys.executable, "-m", "nightjar_models", "compile", *arguments], path.parent, dict(variables))
    return out


def run(argv: Sequence[str], cwd: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr[-1000:]}")
    return done


def rewrite(name: str, folder: Path) -> Iterator[Callable[[], Path]]:
    text, base = read(name), folder / name
    for kind, change in TEXTS.items():
        changed = change(text)
        yield partial(compile_text, changed, base / kind.replace(" ", "-") / f"{name}.py")
    yield partial(compile_text, text, base / "other-file" / "another_name.py")
    yield partial(compile_text, text, base / "other folder" / "deep" / f"{name}.py")
    yield partial(compile_text, text, base / "one-core" / f"{name}.py", ("taskset", "-c", "0"))
    host = (("HOME", str(base)), ("TZ", "Asia/Tokyo"), ("HOSTNAME", "elsewhere"), ("USER", "somebody"))
    yield partial(compile_text, text, base / "other-host" / f"{name}.py", (), host)
    yield partial(
        compile_text, text.replace("import jax\n", "import jax\nimport json\n"), base / "import" / f"{name}.py"
    )


def describe(before: Path, after: Path) -> str:
    """What `nightjar-ci show` prints of two results; empty where no fact differs."""
    argv = [sys.executable, "-m", "nightjar_ci", "show", str(before), str(after)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv)}: {done.stderr[-1000:]}")
    return done.stdout if done.returncode else ""


def plant(
    programs: Sequence[str], plain: dict[str, Path], folder: Path, wanted: int, pool: ThreadPoolExecutor
) -> Iterator[bool]:
    drawn = draw(programs)
    digests = {name: trace(folder / name / "plain" / f"{name}.py") for name in programs}
    left = wanted
    for pair in zip(drawn[::2], drawn[1::2], strict=False):
        answers = pool.map(lambda one: ask(one[0], one[1], plain, folder, digests), pair)
        for told in answers:
            if told is not None and left:
                left -= 1
                yield told
        if not left:
            return


def draw(programs: Sequence[str]) -> list[tuple[str, Mutant]]:
    mutants = []
    for name in programs:
        source = read(name).encode()
        end = source[: source.index(b"\ndef make")].count(b"\n")
        groups = find_mutants(f"{name}.py", source)
        mutants += [(name, one) for group in groups for one in group if one.line <= end]
    random.Random(SEED).shuffle(mutants)
    return mutants


def trace(path: Path) -> str | None:
    """A digest of the program's StableHLO; None where it does not trace."""
    argv = [sys.executable, "-c", TRACE, path.name]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(argv, cwd=path.parent, env=environ, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def ask(name: str, mutant: Mutant, plain: dict[str, Path], folder: Path, digests: dict[str, str | None]) -> bool | None:
    """Whether a fault is named with its line; None where the mutant is no fault."""
    path = folder / name / f"fault-{mutant.start}-{mutant.kind.replace('/', ' ').replace(' ', '-')}" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mutant.plant(read(name).encode()))
    if trace(path) in (None, digests[name]):
        return None
    said = describe(plain[name], compile_text(path.read_text(encoding="utf-8"), path))
    named = f"{name}.py:{mutant.line} " in said
    verdict = "named" if named else "red without its line" if said else "not red"
    print(f"  {mutant.place} {mutant.kind}: {mutant.before} -> {mutant.after}: {verdict}", flush=True)
    if not named:
        print(said[:1500], flush=True)
    return named

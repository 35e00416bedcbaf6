"""The search for a good end that nobody knows: back from the bad end by 1, 2, 4, 8 ... rungs until a test is good.

In: a ladder whose last rung is bad, and the test. Out: a ladder that begins at a good rung. Results are kept in
`ends.json`, so that an interrupted bisection does not test a rung again. The bisection itself tests both ends again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import Ladder, file_name
from nightjar_ci.bisect.probing.classify import Classifier
from nightjar_ci.bisect.probing.rung_run import RungTest
from nightjar_ci.bisect.search.types import Outcome
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_text


def find_good_end(n_rungs: int, read: Callable[[int], Outcome]) -> int | None:
    """The nearest good rung that lies 1, 2, 4 ... rungs before the last; None if there is none.

    Args:
        read: tests a rung; a rung that cannot tell is stepped over, to the one before.

    >>> tested = []
    >>> find_good_end(100, lambda rung: tested.append(rung) or ("good" if rung < 80 else "bad")), tested
    (67, [98, 97, 95, 91, 83, 67])
    """
    step, rung = 1, n_rungs - 1
    while rung > 0:
        rung = max(0, n_rungs - 1 - step)
        answer = read(rung)
        while answer == "cannot_tell" and rung > 0:
            rung -= 1
            answer = read(rung)
        if answer == "good":
            return rung
        step = 2 * max(step, (n_rungs - 1 - rung + 1) // 2)
    return None


def shorten_ladder(test: RungTest, classifier: Classifier, folder: Path) -> Ladder:
    """The part of a ladder from a good rung on."""
    path = folder / "ends.json"
    answers: dict[str, Outcome] = {}
    if path.exists():
        answers = json.loads(path.read_text(encoding="utf-8"))
    rungs = test.ladder.rungs

    def read(index: int) -> Outcome:
        name = rungs[index].name
        if name not in answers:
            test.on_line(f"looking for a good end: {name}")
            here = folder / "ends" / file_name(index, name)
            outcome = test.run(test.job(index, here.name), index, here)
            answers[name] = classifier.read(outcome, here, None).answer or "cannot_tell"
            write_text(path, json.dumps(answers))
        return answers[name]

    good = find_good_end(len(rungs), read)
    if good is None:
        raise InputError(
            f"no good end was found: {', '.join(f'{name} {answer}' for name, answer in answers.items())}.".replace(
                "_", " "
            ),
            "name a good end with --good, or check that the test passes anywhere",
        )
    return test.ladder.model_copy(update={"rungs": rungs[good:]})

"""`nightjar-models` with one planted fault: `python broken_trainer.py FAULT ARGUMENT...`.

The reference side of a paired comparison (its job ids end with `-b`) runs without the fault.
"""

import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

SLEEP_S, SLOW_STEPS = 1.0, 6  # to wait longer costs nothing, and a busy machine decides after four pairs


def break_learning_rate() -> None:
    sys.argv += ["--set", "learning_rate=0.001"]


def break_speed() -> None:
    """Waits in each of the first steps, which are all that a run of a pair has; not while the devices compute."""
    from nightjar_models.training import train

    whole: Callable[..., Any] = train.wait_for
    steps = count()

    def slow(*arguments: Any) -> Any:
        loss = whole(*arguments)
        if next(steps) < SLOW_STEPS:
            time.sleep(SLEEP_S)
        return loss

    setattr(train, "wait_for", slow)  # noqa: B010


FAULTS = {"learning_rate": break_learning_rate, "speed": break_speed}

if __name__ == "__main__":
    fault = FAULTS[sys.argv.pop(1)]
    if not os.environ.get("NIGHTJAR_JOB", "").endswith("-b"):
        fault()
    from nightjar_models.cli import main

    main()

"""What a log shows of a night while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from nightjar_ci.night.progress import NightProgress


def test_a_log_shows_the_first_line_of_each_job_at_once_and_the_next_only_after_a_while() -> None:
    log = io.StringIO()
    with NightProgress(2, Console(file=log)) as progress:
        for job in ("a", "b"):
            progress.start(job)
            progress.on_line(f"making what {job} needs")
            progress.on_line("more")
    assert log.getvalue() == "[1/2] a\n  making what a needs\n[2/2] b\n  making what b needs\n"

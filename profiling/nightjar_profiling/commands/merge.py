"""`nightjar-profiling merge`: one capture of the captures of many ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightjar_profiling.commands.report import show


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Capture folders, one per rank, or the folder that holds them, or log folders of JAX.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The capture folder to make.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one line of JSON.")] = False,
) -> None:
    """Merge the captures of several ranks into one.

    Programs are matched, clocks aligned by common collectives, and the waits of collectives computed.

    Ranks are counted in the order of the numbers in which the folders' names end, else in the order given.

    Example: nightjar-profiling merge run/rank* --out run/all
    """
    from nightjar_profiling.capture_folder.ranks import find_rank_folders
    from nightjar_profiling.errors import InputError
    from nightjar_profiling.pipeline.hosts import merge_captures, tabulate_hosts
    from nightjar_profiling.pipeline.merge import check_folders, order_folders
    from nightjar_profiling.pipeline.staging import making
    from nightjar_profiling.readers.detect import find_kind, find_traces, is_raw

    traces = [trace for folder in folders if is_raw(folder) for trace in find_traces(folder)]
    captures = [folder for path in folders if not is_raw(path) for folder in find_rank_folders(path) or [path]]
    for trace in traces:
        find_kind(trace)
    check_folders(captures, traces)
    if any(out.resolve().is_relative_to(path.resolve()) for path in (*folders, *captures)):
        raise InputError(f"--out {out}: lies in a capture that is read.", "name another folder")
    with making(out) as new:
        hosts = tabulate_hosts(traces, new / "hosts", [])
        profile = merge_captures([*order_folders(captures), *hosts], new)
    show(profile, out, as_json=as_json)

"""`nightjar-profiling merge`: one capture of the captures of many ranks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Capture folders, one per rank, or the folder that holds them."),
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
    from nightjar_profiling.pipeline import merge as merging
    from nightjar_profiling.pipeline.ingest import publish_tables
    from nightjar_profiling.pipeline.staging import making

    folders = [rank for folder in folders for rank in find_rank_folders(folder) or [folder]]
    merging.check_folders(folders)
    if any(out.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise InputError(f"--out {out}: lies in a capture that is read.", "name another folder")
    ordered = merging.order_folders(folders)
    with making(out) as new:
        print(f"nightjar-profiling: merging {len(ordered)} captures", file=sys.stderr, flush=True)
        warnings = merging.merge_tables(ordered, new / "tables")
        for folder in ordered:
            if (folder / "sources").is_dir():
                shutil.copytree(folder / "sources", new / "sources", dirs_exist_ok=True)
        profile = publish_tables(new, merging.merge_manifests(ordered, warnings))
    for warning in profile.warnings:
        print(f"nightjar-profiling: warning: {warning}", file=sys.stderr)
    print(json.dumps(profile.document()) if as_json else (out / "report.html").absolute(), flush=True)

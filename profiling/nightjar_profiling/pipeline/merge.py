"""How do the captures of many ranks become one?

In: capture folders, one per rank. Out: one capture folder with the same tables, in which

- a program that several ranks compiled is one (`program_match`), though autotuning may give ranks of one job different
  fingerprints; which do is a warning;
- `rank` is what the captures say where they all differ, else it counts the captures in the order given; every
  `program_id` is that of the matched program;
- `collectives.wait_ns` and `clocks` follow from the collectives that ranks ran together.

Tables with a row for each event go from the ranks' Parquet files to one file through Polars' streaming engine, so that
a thousand ranks need no more memory than a few. They stay sorted by rank: a query for one rank reads little.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl

from nightjar_profiling.analyses.communication.clocks import estimate_clocks
from nightjar_profiling.analyses.communication.collective_matching import COLLECTIVE_KEY, number_runs
from nightjar_profiling.analyses.communication.collectives import add_waits
from nightjar_profiling.analyses.compare.program_match import ProgramMatcher
from nightjar_profiling.capture_folder.manifest import Manifest, read_manifest
from nightjar_profiling.capture_folder.tables import (
    EVENTS,
    SCHEMAS,
    collect,
    make_table,
    read_table,
    scan_table,
    write_table,
    writing,
)
from nightjar_profiling.errors import InputError, ProfilingError

ROW_GROUP_ROWS = 1 << 18
DIFFERS = "differs by rank"
DESCRIBED = ("programs", "instructions", "frames", "buffers", "groups")  # tables of programs, each told once


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """A capture of one or more ranks, and what becomes of its numbers.

    Attributes:
        tables: its folder of tables.
        first_rank: what is added to its ranks.
        programs: new program id by its own.
    """

    tables: Path
    first_rank: int
    programs: dict[int, int]


def order_folders(folders: Sequence[Path]) -> list[Path]:
    """Folders in order of the number in which their names end, where all have one; else as given.

    >>> [path.name for path in order_folders([Path("rank10"), Path("rank2")])]
    ['rank2', 'rank10']
    """
    numbers = [re.search(r"(\d+)$", path.name) for path in folders]
    found = [int(one[1]) for one in numbers if one is not None]
    if len(set(found)) < len(folders):
        return list(folders)
    return [path for _, path in sorted(zip(found, folders, strict=True), key=lambda pair: pair[0])]


def merge_tables(folders: Sequence[Path], out: Path) -> list[str]:
    """Merges the tables of captures.

    Args:
        folders: the captures, in order of rank.
        out: folder for the merged tables.

    Returns:
        What is doubtful.

    Raises:
        InputError: a capture is incomplete.
    """
    out.mkdir(parents=True, exist_ok=True)
    parts, warnings = _match_programs(folders, out)
    for name in EVENTS:
        _stream(name, parts, out)
    runs = pl.concat([collect(_moved("collectives", part), part.tables, "collectives") for part in parts])
    collectives = add_waits(runs, read_table(out, "groups"))
    collectives = collectives.select(list(SCHEMAS["collectives"])).sort("rank", "device", "start_ns")
    write_table(collectives, out / "collectives.parquet")
    clocks = estimate_clocks(collectives)
    write_table(clocks, out / "clocks.parquet")
    return [*warnings, *_doubts(out, clocks, collectives)]


def merge_manifests(folders: Sequence[Path], warnings: Sequence[str]) -> Manifest:
    """The manifest of a merged capture: what the ranks share, and every warning with the rank it is of."""
    found = [read_manifest(folder) for folder in folders]
    ranks = dict.fromkeys(
        f"{folder.name}: {text}" for folder, one in zip(folders, found, strict=True) for text in one.warnings
    )
    failed = [one.exit_code for one in found if one.exit_code]
    first = found[0]
    return replace(
        first,
        exit_code=failed[0] if failed else first.exit_code,
        environment=_share([one.environment for one in found]),
        steps=first.steps if all(one.steps == first.steps for one in found) else None,
        raw=(),
        sources=tuple(sorted({file for one in found for file in one.sources})),
        user_code=tuple(dict.fromkeys(pattern for one in found for pattern in one.user_code)),
        warnings=(*ranks, *warnings),
    )


def _share(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where the ranks ran: the devices of all, and of what else they do not share that it differs.

    What one process used is not said of all.
    """
    shared = {key: value for key, value in environments[0].items() if key not in ("rank", "usage")}
    if devices := [kind for one in environments for kind in one.get("devices", [])]:
        shared["devices"] = devices
    for key in ("versions", "machine", "flags"):
        told = [one.get(key, {}) for one in environments]
        if names := sorted({name for one in told for name in one}):
            values = {name: [one.get(name) for one in told] for name in names}
            shared[key] = {
                n: found[0] if found.count(found[0]) == len(found) else DIFFERS for n, found in values.items()
            }
    return shared


def _match_programs(folders: Sequence[Path], out: Path) -> tuple[list[RankPart], list[str]]:
    """Gives equal programs of all ranks one id, and writes the tables that describe programs, each once."""
    matcher = ProgramMatcher()
    kept: dict[str, list[pl.DataFrame]] = {
        name: [pl.DataFrame(schema=SCHEMAS[name])] for name in (*DESCRIBED, "attribution", "variants")
    }
    described: set[int] = set()
    attributed: set[tuple[int, str]] = set()
    parts, ranks = [], _read_ranks(folders)
    for folder, own, first_rank in zip(folders, ranks, _first_ranks(ranks), strict=True):
        tables = folder / "tables"
        programs, instructions = read_table(tables, "programs"), read_table(tables, "instructions")
        moved = matcher.add(folder.name, programs, instructions)
        seen = matcher.describe(moved, programs, instructions)
        rows = ({**row, "rank": rank + first_rank} for rank in own for row in seen)
        kept["variants"].append(make_table("variants", rows))
        part = RankPart(tables=tables, first_rank=first_rank, programs=moved)
        new = [number for number, common in moved.items() if common not in described]
        described.update(moved.values())
        for name in DESCRIBED if new else ():
            fresh = read_table(tables, name).filter(pl.col("program_id").is_in(new))
            kept[name].append(fresh.with_columns(_new_ids(part)))
        kept["instructions"].append(_unknown(instructions, part, new, matcher))
        _keep_attribution(part, new, kept, attributed)
        parts.append(part)
    for name, found in kept.items():
        merged = pl.concat(found)
        merged = (
            merged.unique(["program_id", "name"], keep="first", maintain_order=True)
            if name == "instructions"
            else merged
        )
        write_table(merged, out / f"{name}.parquet")
    return parts, list(matcher.warnings())


def _read_ranks(folders: Sequence[Path]) -> list[list[int]]:
    """The ranks that each capture names."""
    places = [folder / "tables" for folder in folders]
    ranks = [collect(scan_table(place, "ops").select(pl.col("rank").unique().sort()), place, "ops") for place in places]
    return [found["rank"].to_list() or [0] for found in ranks]


def _first_ranks(ranks: Sequence[list[int]]) -> list[int]:
    """What to add to the ranks of each capture: nothing where all differ already, as those of one job's archives do."""
    if sum(map(len, ranks)) == len({rank for own in ranks for rank in own}):
        return [0] * len(ranks)
    widths = [max(own) - min(own) + 1 for own in ranks]
    begins = accumulate(widths, initial=0)
    return [begin - min(own) for begin, own in zip(begins, ranks, strict=False)]


def _unknown(instructions: pl.DataFrame, part: RankPart, new: list[int], matcher: ProgramMatcher) -> pl.DataFrame:
    """Instructions that the rank which described their program lacks; the stacks come with the attribution."""
    lacking = [
        instructions.filter((pl.col("program_id") == number) & pl.col("name").is_in(list(names)))
        for number, common in part.programs.items()
        if number not in new and (names := matcher.differing(common))
    ]
    found = pl.concat([instructions.clear(), *lacking])
    return found.with_columns(_new_ids(part), frame_id=pl.lit(None, pl.Int64))


def _keep_attribution(
    part: RankPart, new: list[int], kept: dict[str, list[pl.DataFrame]], attributed: set[tuple[int, str]]
) -> None:
    """Takes over the attribution of the instructions that no earlier rank ran.

    Their frames come with them, under free ids, where the program itself is an earlier rank's: that one's stacks may
    be numbered otherwise.
    """
    table = read_table(part.tables, "attribution")
    keys = list(table.select("program_id", "instruction").iter_rows())
    fresh = pl.Series([(part.programs.get(p, p), i) not in attributed for p, i in keys], dtype=pl.Boolean)
    attributed.update((part.programs.get(p, p), i) for p, i in keys)
    table = table.filter(fresh)
    if table.is_empty():
        return
    known = table.filter(~pl.col("program_id").is_in(new))
    if not known.is_empty():
        shift = max((number for frames in kept["frames"] for number in frames["frame_id"].to_list()), default=0) + 1
        frames = read_table(part.tables, "frames").filter(
            pl.col("program_id").is_in(known["program_id"].unique().implode())
        )
        kept["frames"].append(
            frames.with_columns(_new_ids(part), pl.col("frame_id") + shift, pl.col("parent_id") + shift)
        )
        table = table.with_columns(
            pl.when(pl.col("program_id").is_in(new)).then("frame_id").otherwise(pl.col("frame_id") + shift)
        )
    kept["attribution"].append(table.with_columns(_new_ids(part)))


def _new_ids(part: RankPart) -> pl.Expr:
    return pl.col("program_id").replace(part.programs) if part.programs else pl.col("program_id")


def _moved(name: str, part: RankPart) -> pl.LazyFrame:
    """A table of a rank with the numbers of the merged capture."""
    columns = [pl.col("rank") + part.first_rank]
    moves = any(old != new for old, new in part.programs.items())
    if moves and "program_id" in SCHEMAS[name]:
        columns.append(_new_ids(part))
    return scan_table(part.tables, name).with_columns(columns)


def _stream(name: str, parts: Sequence[RankPart], out: Path) -> None:
    merged = pl.concat([_moved(name, part) for part in parts])
    path = out / f"{name}.parquet"
    try:
        with writing(path):
            merged.sink_parquet(path, row_group_size=ROW_GROUP_ROWS, maintain_order=True)
    except ProfilingError:
        for part in parts:
            read_table(part.tables, name)  # one that is damaged says so
        raise


def _doubts(out: Path, clocks: pl.DataFrame, collectives: pl.DataFrame) -> list[str]:
    """What a merged capture cannot tell."""
    devices = scan_table(out, "ops").select("rank", "device").unique().collect()
    others = devices.sort("rank", "device").slice(1)
    apart = others.join(clocks, on=["rank", "device"], how="anti").height
    counts = (
        scan_table(out, "executions")
        .group_by("program_id", "rank", "device")
        .len()
        .group_by("program_id")
        .agg(pl.col("len").n_unique())
        .filter(pl.col("len") > 1)
        .collect()
        .height
    )
    warnings = []
    if apart:
        warnings.append(
            f"The clocks of {apart} of {devices.height} devices are not aligned: they share no collective with the "
            "first."
        )
    grouped = number_runs(collectives).filter(~pl.col("shared") & (pl.len().over(COLLECTIVE_KEY) > 1))
    if not grouped.is_empty():
        warnings.append(
            f"{grouped['instruction'].n_unique()} of {collectives['instruction'].n_unique()} collectives ran in "
            "several groups side by side that the traces do not tell apart: who waited for whom in them is not known."
        )
    if counts:
        warnings.append(
            f"{counts} programs ran more often on some devices than on others: their executions, and the waits of "
            "their collectives, may be matched wrongly. Trace the same steps on all ranks."
        )
    return warnings


def check_folders(folders: Sequence[Path]) -> None:
    """Refuses what cannot be merged.

    Raises:
        InputError: fewer than two folders, one named twice, or one that is no capture or holds no tables.
    """
    if len(folders) < 2:
        raise InputError(
            f"merge: {len(folders)} capture folder, expected one for each rank.", "merge run/rank* --out run"
        )
    for folder in folders:
        if not (folder / "manifest.json").is_file():
            raise InputError(f"{folder}: not a capture: it has no manifest.json.", "name one capture folder per rank")
        if not (folder / "tables").is_dir():
            raise InputError(
                f"{folder}: this capture has no tables: nothing was traced, or its program failed before.",
                "capture again, or name the folders of the other ranks one by one",
            )
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("merge: a capture folder is named twice.", "each rank counts once")

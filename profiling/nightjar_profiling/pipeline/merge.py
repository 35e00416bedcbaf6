"""Merge of the captures of many ranks.

In: capture folders, one per rank. Out: one capture folder with the same tables, in which

- a program that several ranks compiled has one id (`program_match`). Autotuning may give ranks of one job different
  fingerprints; a warning names such programs;
- `rank` is the rank in the captures if all ranks differ, otherwise the position of the capture; every `program_id` is
  the matched program's;
- `collectives.wait_ns` and `clocks` are computed from the collectives that ranks ran together.

Tables with a row per event go from the ranks' Parquet files to one file through Polars' streaming engine, so that a
thousand ranks need no more memory than a few. They stay sorted by rank, so a query for one rank reads little.
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
from nightjar_profiling.analyses.communication.collectives import COLLECTIVE_KEY, add_waits, number_runs
from nightjar_profiling.analyses.compare.program_match import ProgramMatcher
from nightjar_profiling.capture_folder.manifest import Manifest, read_manifest
from nightjar_profiling.capture_folder.tables import (
    EVENTS,
    SCHEMAS,
    collect,
    read_table,
    scan_table,
    write_table,
    writing,
)
from nightjar_profiling.errors import InputError, ProfilingError

ROW_GROUP_ROWS = 1 << 18
DIFFERS = "differs by rank"
DESCRIBED = (
    "programs",
    "instructions",
    "frames",
    "buffers",
    "groups",
    "scopes",
    "merged_operations",
    "avoidable",
    "memory_over_time",
)  # tables of programs, one copy of each


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """A capture of one or more ranks, and how its numbers change.

    Attributes:
        tables: folder of its tables.
        first_rank: number added to its ranks.
        programs: merged program id by program id of the capture.
    """

    tables: Path
    first_rank: int
    programs: dict[int, int]


def order_folders(folders: Sequence[Path]) -> list[Path]:
    """Sorts folders by the number at the end of their names if all have a different one; otherwise keeps the order.

    >>> [path.name for path in order_folders([Path("rank10"), Path("rank2")])]
    ['rank2', 'rank10']
    """
    matches = [re.search(r"(\d+)$", path.name) for path in folders]
    numbers = [int(match[1]) for match in matches if match is not None]
    if len(set(numbers)) < len(folders):
        return list(folders)
    return [path for _, path in sorted(zip(numbers, folders, strict=True), key=lambda pair: pair[0])]


def merge_tables(folders: Sequence[Path], out: Path) -> list[str]:
    """Merges the tables of captures."""
    out.mkdir(parents=True, exist_ok=True)
    parts, warnings = _match_programs(folders, out)
    for name in EVENTS:
        _stream(name, parts, out)
    kernels = pl.concat([collect(_moved("kernels", part), part.tables, "kernels") for part in parts])
    write_table(kernels, out / "kernels.parquet")
    runs = pl.concat([collect(_moved("collectives", part), part.tables, "collectives") for part in parts])
    collectives = add_waits(runs, read_table(out, "groups"))
    collectives = collectives.select(list(SCHEMAS["collectives"])).sort("rank", "device", "start_ns")
    write_table(collectives, out / "collectives.parquet")
    clocks = estimate_clocks(collectives)
    write_table(clocks, out / "clocks.parquet")
    return [*warnings, *_find_doubts(out, clocks, collectives)]


def merge_manifests(folders: Sequence[Path], warnings: Sequence[str]) -> Manifest:
    """Merges manifests: the values that all ranks share, and the warnings with the folder of their rank."""
    manifests = [read_manifest(folder) for folder in folders]
    of_all = set.intersection(*(set(manifest.warnings) for manifest in manifests))
    ranks = dict.fromkeys(
        text if text in of_all else f"{folder.name}: {text}"
        for folder, manifest in zip(folders, manifests, strict=True)
        for text in manifest.warnings
    )
    failed = [manifest.exit_code for manifest in manifests if manifest.exit_code]
    first = manifests[0]
    return replace(
        first,
        exit_code=next(iter(failed), first.exit_code),
        environment=_share([manifest.environment for manifest in manifests]),
        steps=first.steps if all(manifest.steps == first.steps for manifest in manifests) else None,
        raw=(),
        sources=tuple(sorted({file for manifest in manifests for file in manifest.sources})),
        user_code=tuple(dict.fromkeys(pattern for manifest in manifests for pattern in manifest.user_code)),
        warnings=(*ranks, *warnings),
    )


def _share(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The environment of all ranks: the devices of all, and DIFFERS for other values that ranks do not share.

    Keys of a single process (`rank`, `usage`) are left out.
    """
    shared = {key: value for key, value in environments[0].items() if key not in ("rank", "usage")}
    if devices := [device for environment in environments for device in environment.get("devices", [])]:
        shared["devices"] = devices
    hosts = [environment.get("machine", {}).get("host", "unknown") for environment in environments]
    if len(set(hosts)) > 1:
        shared["hosts"] = hosts
    for key in ("versions", "machine", "flags"):
        sections = [environment.get(key, {}) for environment in environments]
        if names := sorted({name for section in sections for name in section}):
            shared[key] = {name: _share_value([section.get(name) for section in sections]) for name in names}
    return shared


def _share_value(values: list[Any]) -> Any:
    if values.count(values[0]) == len(values):
        return values[0]
    return DIFFERS


def _match_programs(folders: Sequence[Path], out: Path) -> tuple[list[RankPart], list[str]]:
    """Gives equal programs of all ranks one id, and writes the tables that describe programs."""
    matcher = ProgramMatcher()
    kept: dict[str, list[pl.DataFrame]] = {
        name: [pl.DataFrame(schema=SCHEMAS[name])] for name in (*DESCRIBED, "attribution")
    }
    described: set[int] = set()
    attributed: set[tuple[int, str]] = set()
    parts, ranks = [], _read_ranks(folders)
    for folder, first_rank in zip(folders, _first_ranks(ranks), strict=True):
        tables = folder / "tables"
        programs, instructions = read_table(tables, "programs"), read_table(tables, "instructions")
        moved = matcher.add(folder.name, programs, instructions)
        part = RankPart(tables=tables, first_rank=first_rank, programs=moved)
        new = [number for number, common in moved.items() if common not in described]
        described.update(moved.values())
        for name in DESCRIBED if new else ():
            fresh = read_table(tables, name).filter(pl.col("program_id").is_in(new))
            kept[name].append(fresh.with_columns(_new_ids(part)))
        kept["instructions"].append(_find_missing_instructions(instructions, part, new, matcher))
        _keep_attribution(part, new, kept, attributed)
        parts.append(part)
    for name, tables_of_ranks in kept.items():
        merged = pl.concat(tables_of_ranks)
        if name == "instructions":
            merged = merged.unique(["program_id", "name"], keep="first", maintain_order=True)
        write_table(merged, out / f"{name}.parquet")
    return parts, list(matcher.warnings())


def _read_ranks(folders: Sequence[Path]) -> list[list[int]]:
    paths = [folder / "tables" for folder in folders]
    ranks = [collect(scan_table(path, "ops").select(pl.col("rank").unique().sort()), path, "ops") for path in paths]
    return [column["rank"].to_list() or [0] for column in ranks]


def _first_ranks(ranks: Sequence[list[int]]) -> list[int]:
    """The number to add to the ranks of each capture: 0 if all ranks differ already, as in the archives of one job."""
    if sum(map(len, ranks)) == len({rank for folder_ranks in ranks for rank in folder_ranks}):
        return [0] * len(ranks)
    widths = [max(folder_ranks) - min(folder_ranks) + 1 for folder_ranks in ranks]
    begins = accumulate(widths, initial=0)
    return [begin - min(folder_ranks) for begin, folder_ranks in zip(begins, ranks, strict=False)]


def _find_missing_instructions(
    instructions: pl.DataFrame, part: RankPart, new: list[int], matcher: ProgramMatcher
) -> pl.DataFrame:
    """Instructions that the first rank with their program lacks; their stacks come with the attribution."""
    lacking = [
        instructions.filter((pl.col("program_id") == number) & pl.col("name").is_in(list(names)))
        for number, common in part.programs.items()
        if number not in new and (names := matcher.differing(common))
    ]
    merged = pl.concat([instructions.clear(), *lacking])
    return merged.with_columns(_new_ids(part), frame_id=pl.lit(None, pl.Int64))


def _keep_attribution(
    part: RankPart, new: list[int], kept: dict[str, list[pl.DataFrame]], attributed: set[tuple[int, str]]
) -> None:
    """Keeps the attribution of the instructions that no earlier rank ran, and the tables that follow it.

    If an earlier rank has the program, the frames are kept under free ids, because that rank may number its stacks
    differently.
    """
    table = read_table(part.tables, "attribution")
    keys = list(table.select("program_id", "instruction").iter_rows())
    is_new = pl.Series([(part.programs.get(p, p), i) not in attributed for p, i in keys], dtype=pl.Boolean)
    attributed.update((part.programs.get(p, p), i) for p, i in keys)
    table = table.filter(is_new)
    if table.is_empty():
        return
    of_earlier = table.filter(~pl.col("program_id").is_in(new))
    if not of_earlier.is_empty():
        ran = of_earlier.select("program_id", "instruction").unique()
        shift = max((number for frames in kept["frames"] for number in frames["frame_id"].to_list()), default=0) + 1
        frames = read_table(part.tables, "frames").filter(
            pl.col("program_id").is_in(of_earlier["program_id"].unique().implode())
        )
        kept["frames"].append(
            frames.with_columns(_new_ids(part), pl.col("frame_id") + shift, pl.col("parent_id") + shift)
        )
        for name in ("scopes", "merged_operations", "avoidable"):
            more = read_table(part.tables, name).join(ran, on=["program_id", "instruction"], how="semi")
            shifted = [pl.col(column) + shift for column in more.columns if column.endswith("frame_id")]
            kept[name].append(more.with_columns(_new_ids(part), *shifted))
        table = table.with_columns(
            pl.when(pl.col("program_id").is_in(new)).then("frame_id").otherwise(pl.col("frame_id") + shift)
        )
    kept["attribution"].append(table.with_columns(_new_ids(part)))


def _new_ids(part: RankPart) -> pl.Expr:
    if part.programs:
        return pl.col("program_id").replace(part.programs)
    return pl.col("program_id")


def _moved(name: str, part: RankPart) -> pl.LazyFrame:
    """A table of a rank with the ranks and program ids of the merged capture."""
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
            read_table(part.tables, name)  # a damaged table raises with its own name
        raise


def _find_doubts(out: Path, clocks: pl.DataFrame, collectives: pl.DataFrame) -> list[str]:
    """Warnings about uncertain values of a merged capture."""
    devices = scan_table(out, "ops").select("rank", "device").unique().collect()
    others = devices.sort("rank", "device").slice(1)
    unaligned = others.join(clocks, on=["rank", "device"], how="anti").height
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
    if unaligned:
        warnings.append(
            f"The clocks of {unaligned} of {devices.height} devices are not aligned: they share no collective with "
            "the first."
        )
    grouped = number_runs(collectives).filter(~pl.col("shared") & (pl.len().over(COLLECTIVE_KEY) > 1))
    if not grouped.is_empty():
        warnings.append(
            f"{grouped['instruction'].n_unique()} of {collectives['instruction'].n_unique()} collectives ran in "
            "several concurrent groups that the traces do not distinguish: their waits are unknown."
        )
    if counts:
        warnings.append(
            f"{counts} programs ran more often on some devices than on others: their executions and the waits of "
            "their collectives may be mismatched. Trace the same steps on all ranks."
        )
    return warnings


def check_folders(folders: Sequence[Path], traces: Sequence[Path]) -> None:
    """Checks that captures and raw traces can be merged."""
    count = len(folders) + len(traces)
    if count < 2:
        raise InputError(f"merge: {count} capture folder, expected one per rank.", "merge run/rank* --out run")
    for folder in folders:
        if not (folder / "manifest.json").is_file():
            raise InputError(f"{folder}: not a capture: it has no manifest.json.", "name one capture folder per rank")
        if not (folder / "tables").is_dir():
            raise InputError(
                f"{folder}: this capture has no tables: nothing was traced, or the program failed earlier.",
                "capture again, or name the folders of the other ranks one by one",
            )
    if len({path.resolve() for path in (*folders, *traces)}) < count:
        raise InputError("merge: a capture folder is named twice.", "name each folder once")

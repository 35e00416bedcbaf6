"""An nsys export, written as few words as a test can read; its tables and columns are as old or new as asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import polars as pl

Row = dict[str, int | float | str | bytes | None]
PROCESS = 100 << 24
THREAD = PROCESS | 101


class SqliteBuilder:
    """Rows of an export; times in ns."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.strings: dict[str, int] = {}
        self.correlation = 0

    def add(self, table: str, **row: int | float | str | bytes | None) -> SqliteBuilder:
        self.tables.setdefault(table, []).append(row)
        return self

    def string(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[value], value=value)
        return self.strings[value]

    def domain(self, name: str, number: int, thread: int = THREAD) -> SqliteBuilder:
        return self.add("NVTX_EVENTS", start=0, eventType=75, text=name, domainId=number, globalTid=thread)

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        thread: int = THREAD,
        registered: bool = False,
        domain: int = 0,
        kind: int = 59,
        end_thread: int | None = None,
    ) -> SqliteBuilder:
        text: Row = {"textId": self.string(name)} if registered else {"text": name}
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=thread,
            domainId=domain,
            **text,
        )
        if end_thread is not None:
            self.tables["NVTX_EVENTS"][-1]["endGlobalTid"] = end_thread
        return self

    def launch(
        self,
        kernel: str,
        at: int,
        start: int,
        end: int,
        *,
        thread: int = THREAD,
        device: int = 0,
        node: int | None = None,
        correlation: int | None = None,
    ) -> SqliteBuilder:
        if correlation is None:
            self.correlation += 1
            correlation = self.correlation
            self.call(at, at + 2, correlation, thread)
        columns: Row = {"graphNodeId": node} if node is not None else {}
        return self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=device,
            streamId=7,
            correlationId=correlation,
            globalPid=thread & ~0xFFFFFF,
            shortName=self.string(kernel),
            demangledName=self.string(f"{kernel}<float>"),
            **columns,
        )

    def call(self, start: int, end: int, correlation: int, thread: int = THREAD) -> SqliteBuilder:
        name = self.string("cudaLaunchKernel")
        table = "CUPTI_ACTIVITY_KIND_RUNTIME"
        return self.add(table, start=start, end=end, globalTid=thread, correlationId=correlation, nameId=name)

    def frames(self) -> dict[str, pl.DataFrame]:
        frames = {}
        for name, rows in self.tables.items():
            columns = dict.fromkeys(key for row in rows for key in row)
            frames[name] = pl.DataFrame({key: [row.get(key) for row in rows] for key in columns})
        return frames

    def write(self, path: Path, renamed: Mapping[str, str] | None = None) -> Path:
        with closing(sqlite3.connect(path)) as base, base:
            for name, frame in self.frames().items():
                stored = (renamed or {}).get(name, name)
                base.execute(f"CREATE TABLE {stored} ({', '.join(frame.columns)})")
                places = ", ".join("?" * frame.width)
                base.executemany(f"INSERT INTO {stored} VALUES ({places})", frame.rows())
        return path


def training_export() -> SqliteBuilder:
    """Two runs of a program of two thunks, one of them of two kernels; names are registered strings in TSL."""
    built = SqliteBuilder().domain("TSL", 3)
    for start in (0, 1000):
        built.range("XlaModule:#hlo_module=jit_step,program_id=7#", start, start + 100, registered=True, domain=3)
        built.range("Thunk:#name=f(a=1),hlo_op=dot.1#", start + 5, start + 50, registered=True, domain=3)
        built.launch("gemm", start + 10, start + 200, start + 260)
        built.launch("splitk", start + 20, start + 260, start + 270)
        built.range("Thunk:#hlo_op=add.1,unique_hlo_op_id=4#", start + 55, start + 90, registered=True, domain=3)
        built.launch("add", start + 60, start + 280, start + 285)
    return built

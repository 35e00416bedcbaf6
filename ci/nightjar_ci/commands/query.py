"""`nightjar-ci query`: ask the store in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.options import Json


def command(
    sql: Annotated[str, typer.Argument(help="A SELECT, or the name of a table or view.", show_default=False)],
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Write a .parquet, .csv or .json file instead.")] = None,
) -> None:
    """Query the store in SQL.

    The views history (every value with its names), outcomes (every job), verdicts and night answer most questions; a
    name alone is all of its rows. The connection cannot write. Exit code 2: the SQL is wrong. Needs
    Polars: pip install 'nightjar-ci[query]'.

    Example: nightjar-ci query "SELECT night, value FROM history WHERE measure = 'step_time' ORDER BY night"
    """
    from nightjar_ci.errors import InputError
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store.query import query

    if out is not None and out.suffix not in (".parquet", ".csv", ".json"):
        raise InputError(f"--out {out}: expected a name that ends with .parquet, .csv or .json.")
    frame = query(read_settings(), sql)
    if out is None:
        import polars as pl

        if as_json:
            print(frame.write_json())
            return
        with pl.Config(
            tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=200, tbl_width_chars=-1, tbl_hide_dataframe_shape=True
        ):
            print(frame)
        return
    if out.suffix == ".parquet":
        frame.write_parquet(out)
    elif out.suffix == ".csv":
        frame.write_csv(out)
    else:
        frame.write_json(out)
    print(out)

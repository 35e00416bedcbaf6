"""`nightjar-profiling mcp`: answers questions about captures to an agent, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    folder: Annotated[
        Path, typer.Argument(help="Folder; every capture in it, at any depth, can be asked about.")
    ] = Path(),
) -> None:
    """Serve captures to an agent (MCP over stdin and stdout), read-only.

    Needs the extra nightjar-profiling[mcp]. Nothing outside the folder is read, and nothing is written.

    Example: claude mcp add nightjar -- nightjar-profiling mcp runs
    """
    from nightjar_profiling.agents.server import make_server
    from nightjar_profiling.errors import InputError

    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder.", "name the folder that holds the captures")
    make_server(folder.resolve()).run("stdio")

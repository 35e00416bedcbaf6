"""`nightjar-ci mcp`: answers an agent's questions about nights, facts and bisections (Model Context Protocol)."""

from __future__ import annotations


def command() -> None:
    """Answer an agent's questions about nights and bisections (MCP).

    A server over stdin and stdout, for the store and the bisections of this folder; it only reads. An agent starts it:
    claude mcp add nightjar-ci -- nightjar-ci mcp. Needs pip install 'nightjar-ci[mcp]'.

    Example: nightjar-ci mcp
    """
    from nightjar_ci.agents.server import make_server
    from nightjar_ci.settings import read_settings

    make_server(read_settings()).run("stdio")

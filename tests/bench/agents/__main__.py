"""Does an agent get right answers? A hundred questions of known answer, asked over the Model Context Protocol.

`nox -s bench_agents` (half a minute): a server of its own process, as an agent starts it. Every answer is checked for
its size, its source and its uncertainty, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.agents.known import Question, list_questions, make_captures
from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows

RIGHT, SIZE, TIME, SOURCED = (
    "questions answered right, of a hundred",
    "largest answer",
    "median time of an answer",
    "answers without source or uncertainty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, its answer and how long it took."""

    question: Question
    answer: str
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the answer is JSON with what the question expects."""
        try:
            return self.question.is_right(json.loads(self.answer))
        except (ValueError, KeyError, TypeError, IndexError):
            return False

    @property
    def is_sourced(self) -> bool:
        """Whether the answer names its file and its uncertainty."""
        try:
            answer = json.loads(self.answer)
            return bool(answer["source"]["file"]) and bool(answer["uncertainty"])
        except (ValueError, KeyError, TypeError):
            return False


def main() -> int:
    """Asks, prints a table, and returns the exit code."""
    argparse.ArgumentParser(prog="nox -s bench_agents --", description=__doc__).parse_args()
    rows = measure_part([RIGHT, SIZE, TIME, SOURCED], measure)
    print_rows("agents", rows)
    return finish("bench_agents", rows)


def measure() -> list[Row]:
    """The rows.

    Raises:
        NotMeasuredError: the package `mcp` is not installed.
    """
    with tempfile.TemporaryDirectory() as name:
        make_captures(Path(name))
        try:
            asked = asyncio.run(ask(Path(name), list_questions()))
        except ImportError as error:
            raise NotMeasuredError(f"{error}: pip install 'nightjar-profiling[mcp]'") from None
    for wrong in (one for one in asked if not one.is_right):
        print(f"wrong: {wrong.question.name}: {wrong.answer[:300]}", file=sys.stderr)
    seconds = sorted(one.seconds for one in asked)
    return [
        Row(name=RIGHT, ours=sum(one.is_right for one in asked), goal=100, better="higher"),
        Row(name=SIZE, ours=max(len(one.answer.encode()) for one in asked), goal=4096, unit="B"),
        Row(name=TIME, ours=1000 * statistics.median(seconds), goal=300, unit="ms"),
        Row(name="slowest answer", ours=1000 * seconds[-1], unit="ms"),
        Row(name=SOURCED, ours=sum(not one.is_sourced for one in asked), goal=0),
    ]


async def ask(root: Path, questions: list[Question]) -> list[Asked]:
    """Asks a server of its own process."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "nightjar_profiling", "mcp", str(root)])
    asked = []
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for question in questions:
            begin = time.perf_counter()
            result = await session.call_tool(question.tool, question.arguments)
            seconds = time.perf_counter() - begin
            text = "".join(getattr(part, "text", "") for part in result.content)
            asked.append(Asked(question=question, answer=text, seconds=seconds))
    return asked


if __name__ == "__main__":
    sys.exit(main())

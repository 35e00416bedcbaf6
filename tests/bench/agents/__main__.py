"""Does an agent get right answers? A hundred questions of known answer, asked over the Model Context Protocol.

`nox -s bench_agents` (half a minute): a server of its own process, as an agent starts it.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.agents.known import Question, list_questions, make_captures
from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows

RIGHT, TIME = "questions answered right, of a hundred", "median time of an answer"


def main() -> int:
    argparse.ArgumentParser(prog="nox -s bench_agents --", description=__doc__).parse_args()
    rows = measure_part([RIGHT, TIME], measure)
    print_rows("agents", rows)
    return finish("bench_agents", rows)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        make_captures(Path(name))
        try:
            asked = asyncio.run(ask(Path(name), list_questions()))
        except ImportError as error:
            raise NotMeasuredError(f"{error}: pip install 'nightjar-profiling[mcp]'") from None
    right = [question.is_right(json.loads(answer)) for question, answer, _ in asked]
    for (question, answer, _), is_right in zip(asked, right, strict=True):
        if not is_right:
            print(f"wrong: {question.name}: {answer[:300]}", file=sys.stderr)
    seconds = [took for _, _, took in asked]
    return [
        Row(RIGHT, sum(right), goal=100, better="higher"),
        Row(TIME, 1000 * statistics.median(seconds), goal=300, unit="ms"),
    ]


async def ask(root: Path, questions: list[Question]) -> list[tuple[Question, str, float]]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "nightjar_profiling", "mcp", str(root)])
    asked = []
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for question in questions:
            begin = time.perf_counter()
            result = await session.call_tool(question.tool, question.arguments)
            text = "".join(getattr(part, "text", "") for part in result.content)
            asked.append((question, text, time.perf_counter() - begin))
    return asked


if __name__ == "__main__":
    sys.exit(main())

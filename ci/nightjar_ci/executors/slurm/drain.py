"""Drained nodes that a job must leave. Pure: the output of `sinfo` and the job's nodes in, a reason out.

An operator drains a node, or marks it as failing, to repair it. Slurm starts no further job on it and lets running jobs
end, which can take longer than the node lasts.

Source: sinfo(1) of Slurm 22.05.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

SINFO_OPTIONS = ("--all", "--noheader", "--Node", "--states=drain,fail", "--format=%N|%T|%E")
_STATES = ("drain", "fail")  # drained, draining, fail, failing; a suffix, as in `draining@`, may follow


def read_drained(text: str) -> dict[str, str]:
    """The drained nodes of `sinfo SINFO_OPTIONS`, which has a line per partition, with the operator's reasons.

    >>> read_drained("n1|draining@|bad | ECC\\nn1|draining@|bad | ECC\\nn2|failing*|none\\nn3|mixed|none\\n")
    {'n1': 'bad | ECC', 'n2': 'none'}
    """
    lines = (line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2)
    return {node: reason.strip() for node, state, reason in lines if state.startswith(_STATES)}


def explain_drain(nodes: str, drained: Mapping[str, str]) -> str:
    """Why a job must leave its nodes; empty if it can stay.

    >>> explain_drain("n[1-3]", {"n2": "bad ECC", "n20": "repair"})
    'node n2 was drained (bad ECC)'
    """
    if not drained:
        return ""
    lost = [node for node in expand_nodes(nodes) if node in drained]
    return ", ".join(f"node {node} was drained ({drained[node]})" for node in lost)


def expand_nodes(nodes: str) -> list[str]:
    """The node names of a Slurm node list.

    >>> expand_nodes("login,gpu[08-10,12],r[1-2]n[0-1]")
    ['login', 'gpu08', 'gpu09', 'gpu10', 'gpu12', 'r1n0', 'r1n1', 'r2n0', 'r2n1']
    """
    names: list[str] = []
    for entry in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodes):
        parts = re.split(r"\[([^\]]*)\]", entry)  # every second part was in brackets
        names += map("".join, itertools.product(*(_count(part) if n % 2 else (part,) for n, part in enumerate(parts))))
    return names


def _count(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and last.isdigit():
            yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        else:
            yield part

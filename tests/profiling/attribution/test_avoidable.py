"""Work that another way of writing a program would not need is found in what XLA made of it, and nothing else is."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nightjar_profiling.attribution.avoidable import find_avoidable
from nightjar_profiling.hlo.hlo import Program
from tests.profiling.attribution.test_origin import program_of

ROWS, TABLE, IDS = jnp.ones((16, 2000)), jnp.ones((2000, 64)), jnp.arange(48)


def found(program: Program) -> dict[str, float]:
    """The largest fraction of each kind, of the instructions of the entry computation."""
    (entry,) = (members for name, members in program.computations.items() if name.startswith("main"))
    rows = sorted(find_avoidable(program, entry), key=lambda row: row["fraction"])
    return {row["kind"]: row["fraction"] for row in rows}


def embed(ids: Any, table: Any) -> Any:
    return jnp.tanh(jax.nn.one_hot(ids, 2000) @ table)


def masked_sum(length: Any, table: Any) -> Any:
    return jnp.tanh((jnp.arange(2000)[None, :] < length[:, None]).astype(jnp.float32) @ table)


def same_label(ids: Any, table: Any) -> Any:
    return jnp.tanh((jnp.tile(ids, 2000 // len(ids) + 1)[None, :2000] == ids[:, None]).astype(jnp.float32) @ table)


@pytest.mark.parametrize(
    ("function", "arguments", "kinds"),
    [
        (embed, (IDS, TABLE), {"lookup"}),
        (masked_sum, (IDS, TABLE), set()),
        (same_label, (IDS, TABLE), set()),
        (lambda rows: jnp.argsort(-rows, axis=-1)[:, :40], (ROWS,), {"sort"}),
        (lambda rows: jnp.sort(rows, axis=-1)[:, ::-1][:, 3], (ROWS,), {"sort"}),
        (lambda rows: jnp.sort(rows, axis=-1)[:, :1000], (ROWS,), set()),
        (lambda rows: jnp.sort(rows, axis=-1), (ROWS,), set()),
        (lambda rows: jax.lax.top_k(rows, 40)[0][:, -1], (ROWS,), set()),
    ],
)
def test_the_program_is_named_by_its_structure(function: Any, arguments: Any, kinds: set[str]) -> None:
    fractions = found(program_of(function, *arguments))
    assert set(fractions) == kinds
    assert all(fraction > 0.5 for fraction in fractions.values())


def test_a_copy_of_an_argument_asks_for_its_donation_unless_it_is_donated() -> None:
    def write(cache: Any, row: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, row, (3, 0))

    program = program_of(write, TABLE, TABLE[:1])
    assert found(program) == {"donate": 1.0}
    donated = frozenset(name for name, part in program.instructions.items() if part.opcode == "parameter")
    assert found(replace(program, donated=donated)) == {"copy": 1.0}


def test_an_instruction_that_the_program_lacks_is_left_out() -> None:
    assert [*find_avoidable(program_of(embed, IDS, TABLE), ["nothing"])] == []

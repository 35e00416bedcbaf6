"""Pallas, references, checked functions, arrays of other libraries and processes: the rest of `jax` that people use.

Source: "Pallas Quickstart", "The `checkify` transformation", "Ref: mutable arrays", "Multi-process programming" and
"Transfer guard" of docs.jax.dev.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.experimental import pallas as pl

from nightjar_models.conformance.agreement import assert_close, assert_same, draw

X, Y = draw(8, 4), draw(4, 6)


def add(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...] + y[...]


def test_pallas_adds() -> None:
    call = pl.pallas_call(add, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype), interpret=True)
    assert_same(call(X, 2 * X), X + 2 * X)


def test_pallas_takes_blocks_of_a_grid() -> None:
    def multiply(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] @ y[...]

    call = pl.pallas_call(
        multiply,
        out_shape=jax.ShapeDtypeStruct((8, 6), jnp.float32),
        grid=(4, 3),
        in_specs=[pl.BlockSpec((2, 4), lambda i, j: (i, 0)), pl.BlockSpec((4, 2), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((2, 2), lambda i, j: (i, j)),
        interpret=True,
    )
    assert_close(jax.jit(call)(X, Y), X.astype(np.float64) @ Y)


def test_pallas_counts_its_programs() -> None:
    def number(out: Any) -> None:
        row, column = pl.program_id(0), pl.program_id(1)
        out[0, 0] = row * pl.num_programs(1) + column

    call = pl.pallas_call(
        number,
        out_shape=jax.ShapeDtypeStruct((3, 2), jnp.int32),
        grid=(3, 2),
        out_specs=pl.BlockSpec((1, 1), lambda i, j: (i, j)),
        interpret=True,
    )
    assert_same(call(), np.arange(6, dtype=np.int32).reshape(3, 2))


def test_pallas_sums_over_the_last_axis_of_its_grid() -> None:
    def total(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += x[...].sum(0)

    call = pl.pallas_call(
        total,
        out_shape=jax.ShapeDtypeStruct((4,), jnp.float32),
        grid=(pl.cdiv(8, 2),),
        in_specs=[pl.BlockSpec((2, 4), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((4,), lambda i: (0,)),
        interpret=True,
    )
    assert_close(call(X), X.astype(np.float64).sum(0))


def test_references_are_changed_in_place() -> None:
    counter = jax.new_ref(jnp.zeros(3))
    assert isinstance(counter, jax.Ref)

    @jax.jit
    def step(counter: Any, x: Any) -> Any:
        counter[...] += x
        counter[0] = 9.0
        return counter[1] * 2

    assert float(step(counter, jnp.arange(3.0))) == 2.0
    assert float(step(counter, jnp.arange(3.0))) == 4.0
    assert_same(counter[...], np.array([9, 2, 4], np.float32))


def test_checkify_reports_the_check_that_failed() -> None:
    def root(x: Any) -> Any:
        checkify.check(x >= 0, "x is {x}, expected 0 or more", x=x)
        return jnp.sqrt(x)

    checked = jax.jit(checkify.checkify(root))
    error, value = checked(4.0)
    error.throw()
    assert float(value) == 2.0
    error, _ = checked(-4.0)
    assert "x is -4.0, expected 0 or more" in (error.get() or "")
    with pytest.raises(checkify.JaxRuntimeError, match="expected 0 or more"):
        checkify.check_error(error)


@pytest.mark.parametrize(
    ("errors", "function", "message"),
    [
        (checkify.nan_checks, lambda x: jnp.log(x - 2), "nan"),
        (checkify.div_checks, lambda x: 1 / (x - 1), "division by zero"),
        (checkify.index_checks, lambda x: jnp.arange(3.0)[(x * 5).astype(int)], "out-of-bounds"),
    ],
)
def test_checkify_finds_errors_of_numbers(errors: Any, function: Any, message: str) -> None:
    error, _ = checkify.checkify(function, errors=errors)(jnp.asarray(1.0))
    assert message in (error.get() or "")
    error, _ = checkify.checkify(lambda x: x + 1, errors=errors)(jnp.asarray(1.0))
    assert error.get() is None


def test_arrays_of_other_libraries() -> None:
    array = jnp.asarray(X)
    assert_same(np.from_dlpack(array), X)
    assert_same(jax.dlpack.from_dlpack(array), X)
    assert_same(jnp.from_dlpack(np.array(X)), X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the older name of jax.shard_map, which people still import
def test_older_name_of_shard_map() -> None:
    module = pytest.importorskip("jax.experimental.shard_map")
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    total = module.shard_map(lambda x: jax.lax.psum(x, "x"), mesh, spec, jax.sharding.PartitionSpec())
    assert_close(total(X), X.reshape(4, 2, 4).astype(np.float64).sum(0))


def test_live_arrays_and_clear_caches() -> None:
    array = jnp.asarray(X) + 1
    assert any(live is array for live in jax.live_arrays())
    traced = []

    @jax.jit
    def double(x: Any) -> Any:
        traced.append(x.shape)
        return 2 * x

    for _ in range(2):
        assert_close(double(array), 2 * (X + 1))
    assert len(traced) == 1
    jax.clear_caches()
    assert_close(double(array), 2 * (X + 1))
    assert len(traced) == 2


def test_transfer_guard_refuses_what_nobody_asked_for() -> None:
    with jax.transfer_guard_host_to_device("disallow"), jax.transfer_guard_device_to_host("disallow"):
        array = jax.device_put(X)  # asked for
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
            jnp.add(array, np.float32(1))
    assert_same(array, X)


def test_distributed_initialize_of_one_process() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    lines = (
        "import jax",
        "jax.config.update('jax_num_cpu_devices', 3)",
        f"jax.distributed.initialize('localhost:{port}', num_processes=1, process_id=0)",
        "print(jax.process_count(), jax.process_index(), jax.distributed.is_initialized(), jax.local_device_count())",
        "jax.distributed.shutdown()",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "0", "True", "3"], done.stderr

"""Meshes, shardings, collectives and sharded programs on eight virtual devices, against the whole array in NumPy.

Source: "Distributed arrays and automatic parallelization", "Explicit sharding" and "Manual parallelism with shard_map"
of docs.jax.dev.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from nightjar_models.conformance.agreement import assert_close, assert_same, draw

X = draw(8, 4)


@pytest.fixture
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def test_devices() -> None:
    assert jax.device_count() == jax.local_device_count() == len(jax.devices()) == len(jax.local_devices()) == 8
    assert (jax.process_index(), jax.process_count(), jax.default_backend()) == (0, 1, "cpu")
    assert [device.id for device in jax.devices()] == list(range(8))
    assert isinstance(jax.devices()[0], jax.Device)


def test_meshes(mesh: Mesh) -> None:
    assert mesh.axis_names == ("data", "model")
    assert dict(mesh.shape) == {"data": 4, "model": 2}
    assert sorted(device.id for device in mesh.devices.flat) == list(range(8))
    by_hand = Mesh(mesh_utils.create_device_mesh((2, 4)), ("x", "y"))
    assert by_hand.devices.shape == (2, 4)
    assert len({device.id for device in by_hand.devices.flat}) == 8
    with pytest.raises(ValueError, match="devices"):
        jax.make_mesh((16, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize(
    ("spec", "rows", "columns"),
    [(("data",), 2, 4), (("data", "model"), 2, 2), ((None, "model"), 8, 2), ((("data", "model"),), 1, 4), ((), 8, 4)],
    ids=str,
)
def test_device_put(mesh: Mesh, spec: tuple[Any, ...], rows: int, columns: int) -> None:
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    array = jax.device_put(X, sharding)
    assert array.sharding == sharding
    assert sharding.shard_shape((8, 4)) == (rows, columns)
    assert_same(array, X)
    for shard in array.addressable_shards:
        assert shard.data.shape == (rows, columns)
        assert_same(shard.data, X[shard.index])
    assert sharding.is_fully_replicated == (spec == ())
    assert len(array.sharding.device_set) == 8


def test_placement_on_one_device() -> None:
    array = jax.device_put(X, jax.devices()[3])
    assert array.devices() == {jax.devices()[3]}
    assert array.sharding == SingleDeviceSharding(jax.devices()[3])
    tree = jax.device_put({"a": X, "b": X[0]}, jax.devices()[1])
    assert tree["b"].devices() == {jax.devices()[1]}


def test_arrays_from_callbacks_and_local_data(mesh: Mesh) -> None:
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    for array in (
        jax.make_array_from_callback((8, 4), sharding, lambda index: X[index]),
        jax.make_array_from_process_local_data(sharding, X),
    ):
        assert array.sharding == sharding
        assert_same(array, X)
    assert_same(multihost_utils.process_allgather(jax.device_put(X, sharding), tiled=True), X)


def test_jit_with_shardings(mesh: Mesh) -> None:
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    weights = draw(4, 6)
    product = jax.jit(lambda x, w: x @ w, in_shardings=(rows, whole), out_shardings=rows)(X, weights)
    assert product.sharding.is_equivalent_to(rows, 2)
    assert_close(product, X.astype(np.float64) @ weights)
    total = jax.jit(lambda x: x.sum(), out_shardings=whole)(jax.device_put(X, rows))
    assert_close(total, X.astype(np.float64).sum(), 5e-6)
    assert total.sharding.is_fully_replicated


def test_with_sharding_constraint(mesh: Mesh) -> None:
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    seen = jax.jit(lambda x: jax.lax.with_sharding_constraint(2 * x, columns))(X)
    assert seen.sharding.is_equivalent_to(columns, 2)
    assert_same(seen, 2 * X)
    with jax.set_mesh(mesh):
        by_spec = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("data")))(X)
    assert by_spec.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data")), 2)


def test_set_mesh_and_explicit_axes() -> None:
    explicit = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        assert jax.sharding.get_abstract_mesh().axis_names == ("data", "model")
        x = jax.sharding.reshard(X, jax.P("data", None))
        w = jax.sharding.reshard(draw(4, 6), jax.P(None, "model"))
        product = x @ w
        assert jax.typeof(product).sharding.spec == jax.P("data", "model")
        assert_close(product, X.astype(np.float64) @ draw(4, 6))
        assert jax.typeof(x.sum(1)).sharding.spec == jax.P("data")
        moved = jax.sharding.reshard(product, jax.P())
        assert moved.sharding.is_fully_replicated
        assert_same(moved, np.asarray(product))
    assert jax.sharding.get_abstract_mesh().empty


def test_shard_map_collectives(mesh: Mesh) -> None:
    spec = PartitionSpec("data")

    def run(function: Any, out: Any = spec, checked: bool = True) -> Any:
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=checked))(X)

    blocks = X.reshape(4, 2, 4).astype(np.float64)
    assert_close(run(lambda x: jax.lax.psum(x, "data"), PartitionSpec()), blocks.sum(0))
    assert_close(run(lambda x: jax.lax.pmean(x, "data"), PartitionSpec()), blocks.mean(0))
    assert_close(run(lambda x: jax.lax.pmax(x, "data"), PartitionSpec()), blocks.max(0))
    assert_close(run(lambda x: jax.lax.all_gather(x, "data", tiled=True), PartitionSpec(), False), X)
    ring = [(source, (source + 1) % 4) for source in range(4)]
    assert_close(run(lambda x: jax.lax.ppermute(x, "data", ring)), np.roll(blocks, 1, 0).reshape(8, 4))
    numbered = run(lambda x: x * 0 + jax.lax.axis_index("data"))
    assert_close(numbered, np.repeat(np.arange(4.0), 2)[:, None] * np.ones(4), 0)
    assert int(run(lambda x: jax.lax.axis_size("data") + 0 * x.sum(dtype=jnp.int32), PartitionSpec(), False)) == 4
    scattered = run(lambda x: jax.lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True), PartitionSpec("data"))
    assert_close(scattered, np.concatenate(np.split(blocks.sum(0), 4, axis=1)))
    turned = run(lambda x: jax.lax.all_to_all(x, "data", 1, 0, tiled=True), PartitionSpec(None, "data"))
    assert_close(turned, X)


def test_shard_map_over_two_axes_and_its_gradient(mesh: Mesh) -> None:
    weights = draw(4, 6)

    def multiply(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ w, "model")

    specs = (PartitionSpec("data", "model"), PartitionSpec("model", None))
    product = jax.jit(jax.shard_map(multiply, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("data", None)))
    assert_close(product(X, weights), X.astype(np.float64) @ weights)
    by_x, by_w = jax.grad(lambda x, w: (product(x, w) ** 2).sum(), argnums=(0, 1))(X, weights)
    error = 2 * (X.astype(np.float64) @ weights)
    assert_close(by_x, error @ weights.T, 1e-5)
    assert_close(by_w, X.T @ error, 1e-5)


def test_visualize_array_sharding(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    jax.debug.visualize_array_sharding(jax.device_put(X, NamedSharding(mesh, PartitionSpec("data"))))
    drawn = capsys.readouterr().out
    assert all(f"CPU {number}" in drawn for number in (0, 2, 4, 6)) or "CPU 0,1" in drawn


def test_profiler_writes_a_trace(tmp_path: Path) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    with jax.profiler.StepTraceAnnotation("train", step_num=1), jax.profiler.TraceAnnotation("part"):
        jnp.ones(8).sum().block_until_ready()
    jax.profiler.stop_trace()
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"train" in trace.read_bytes()

"""Meshes, shardings, collectives and sharded programs on eight virtual devices, against the whole array in NumPy.

Source: "Distributed arrays and automatic parallelization", "Explicit sharding" and "Manual parallelism with shard_map"
of docs.jax.dev.
"""

from __future__ import annotations

import math
import pickle
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


def test_devices() -> None:
    assert jax.device_count() == jax.local_device_count() == len(jax.devices()) == len(jax.local_devices()) == 8
    assert (jax.process_index(), jax.process_count(), jax.default_backend()) == (0, 1, "cpu")
    assert [device.id for device in jax.devices()] == list(range(8))
    assert isinstance(jax.devices()[0], jax.Device)


def test_meshes(mesh: Mesh) -> None:
    assert mesh.axis_names == ("data", "model")
    assert dict(mesh.shape) == {"data": 4, "model": 2}
    assert sorted(device.id for device in mesh.devices.flat) == list(range(8))
    assert (mesh.size, mesh.empty, mesh.shape_tuple, mesh.local_mesh) == (8, False, (("data", 4), ("model", 2)), mesh)
    assert not mesh.is_multi_process
    mixed = jax.make_mesh((2, 2, 2), ("a", "e", "m"), axis_types=(AxisType.Auto, AxisType.Explicit, AxisType.Manual))
    assert (mixed.auto_axes, mixed.explicit_axes, mixed.manual_axes) == (("a",), ("e",), ("m",))
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


def test_specs_and_shardings(mesh: Mesh) -> None:
    spec = PartitionSpec("data", None, ("model", "x"))
    assert (len(spec), spec[2], spec.index(None), spec.count("data")) == (3, ("model", "x"), 1, 1)
    assert PartitionSpec("data") + PartitionSpec(None) == PartitionSpec("data", None)
    assert ("x",) + PartitionSpec("data") == PartitionSpec("x", "data")  # noqa: RUF005
    sharding = NamedSharding(mesh, PartitionSpec("model"))
    assert sharding.with_memory_kind("device") == sharding
    assert (sharding.memory_kind, sharding.num_devices, sharding.is_fully_addressable) == ("device", 8, True)
    with mesh:  # the older form of `jax.set_mesh`
        seen = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("model")))(X)
    assert seen.sharding.is_equivalent_to(sharding, 2)
    assert_same(pickle.loads(pickle.dumps(seen)), X)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("zeros", ((8, 4),)), ("ones", ((8, 4),)), ("empty", ((8, 4),)), ("full", ((8, 4), 2.0)), ("zeros_like", (X,)),
     ("ones_like", (X,)), ("full_like", (X, 3.0)), ("arange", (8,)), ("linspace", (0, 1, 8)), ("eye", (8, 4)),
     ("array", (X,)), ("asarray", (X,)), ("astype", (X, np.int32))],
)  # fmt: skip
def test_arrays_are_made_where_they_are_asked_for(mesh: Mesh, name: str, arguments: tuple[Any, ...]) -> None:
    make, plain = getattr(jnp, name), np.asarray(getattr(jnp, name)(*arguments))
    for device in (jax.devices()[3], NamedSharding(mesh, PartitionSpec("data"))):
        array = make(*arguments, device=device)
        wanted = device if isinstance(device, NamedSharding) else SingleDeviceSharding(device)
        assert array.sharding.is_equivalent_to(wanted, array.ndim)
        assert_same(array, plain)
    explicit = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    if name in ("zeros", "ones", "empty", "full", "arange"):
        with jax.set_mesh(explicit):
            array = make(*arguments, out_sharding=jax.P("data"))
            assert jax.typeof(array).sharding.spec[0] == "data"
            assert_same(array, plain)


@pytest.mark.parametrize("name", ["normal", "uniform", "gumbel", "bits", "randint", "bernoulli", "truncated_normal"])
def test_random_numbers_are_the_same_across_a_mesh(name: str) -> None:
    bounds: dict[str, Any] = {"randint": {"minval": 0, "maxval": 9}, "truncated_normal": {"lower": -1, "upper": 2}}
    make, key, options = getattr(jax.random, name), jax.random.key(3), bounds.get(name, {})
    whole = make(key, shape=(8, 4), **options)
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)):
        array = make(key, shape=(8, 4), **options, out_sharding=jax.P("data"))
        plain, number = make(key, shape=(8, 4), **options), make(key, shape=(), **options)
    assert (array.sharding.spec[0], plain.sharding.is_fully_replicated) == ("data", True)
    for seen, wanted in ((array, whole), (plain, whole), (number, make(key, shape=(), **options))):
        assert_same(seen, np.asarray(wanted))


def test_device_put_shares_or_copies() -> None:
    devices = jax.devices()[:2]
    array = jnp.arange(4096.0)
    for given, shared in ((None, True), (True, True), (False, False)):
        same = jax.device_put(array, devices[0], may_alias=given)
        assert (same.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()) == shared
    with pytest.raises(ValueError, match="may_alias and donate"):
        jax.device_put(array, devices[0], may_alias=True, donate=True)
    for device in devices:
        moved = jax.device_put([array + 1, array + 2], device, donate=[True, False], may_alias=[None, True])
        assert [(float(value[1]), value.devices()) for value in moved] == [(2.0, {device}), (3.0, {device})]


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
    product = jax.jit(lambda x, w: x @ w["w"], in_shardings=(rows, None), out_shardings=None)(X, {"w": weights})
    assert_close(product, X.astype(np.float64) @ weights)
    total = jax.jit(lambda x: x.sum(), out_shardings=whole)(jax.device_put(X, rows))
    assert_close(total, X.astype(np.float64).sum(), 5e-6)
    assert total.sharding.is_fully_replicated


def test_with_sharding_constraint(mesh: Mesh) -> None:
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    seen = jax.jit(lambda x: jax.lax.with_sharding_constraint(2 * x, columns))(X)
    assert seen.sharding.is_equivalent_to(columns, 2)
    assert_same(seen, 2 * X)
    rows = jax.device_put(X, NamedSharding(mesh, PartitionSpec("data")))
    free = NamedSharding(mesh, PartitionSpec(PartitionSpec.UNCONSTRAINED, "model"))
    for wanted, spec in ((columns, PartitionSpec(None, "model")), (free, PartitionSpec("data", "model"))):
        moved = jax.jit(lambda x, wanted=wanted: jax.lax.with_sharding_constraint(x, wanted))(rows)
        assert moved.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
    with jax.set_mesh(mesh):
        by_spec = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("data")))(X)
        specs = {"a": PartitionSpec(None, "model"), "b": None}
        tree = jax.jit(lambda x: jax.lax.with_sharding_constraint({"a": x, "b": 2 * x}, specs))(X)
    assert tree["a"].sharding.is_equivalent_to(columns, 2)
    assert_same(jax.jit(lambda x: jax.lax.with_sharding_constraint(x, columns))(draw(8, 3)), draw(8, 3))  # uneven
    for place in (jax.device_put, lambda x, to: jax.jit(lambda x: x, in_shardings=to)(x)):
        with pytest.raises(ValueError, match=r"divisible|evenly divide"):
            place(draw(8, 3), columns)
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
        parts = jnp.reshape(X, (4, 2, 4), out_sharding=jax.P("data", None, None))
        assert jax.typeof(parts).sharding.spec == jax.P("data", None, None)
        for total in (jnp.matmul(X, w, out_sharding=jax.P()), jnp.einsum("ij,jk->ik", X, w, out_sharding=jax.P())):
            assert jax.typeof(total).sharding.is_fully_replicated
            assert_close(total, X.astype(np.float64) @ draw(4, 6))
        moved = jax.sharding.reshard(product, jax.P())
        assert moved.sharding.is_fully_replicated
        assert_same(moved, np.asarray(product))
    assert jax.sharding.get_abstract_mesh().empty


@pytest.mark.parametrize("axes", ["data", "model", ("data", "model"), ("model", "data")], ids=str)
def test_shard_map_collectives(mesh: Mesh, axes: Any) -> None:
    names = (axes,) if isinstance(axes, str) else axes
    count, given, whole = math.prod(mesh.shape[name] for name in names), draw(8, 8), PartitionSpec()
    spec, blocks = PartitionSpec(axes), given.reshape(count, 8 // count, 8).astype(np.float64)

    def run(function: Any, out: Any = spec, checked: bool = True) -> Any:
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=checked))(given)

    for name, reduce in (("psum", np.sum), ("pmean", np.mean), ("pmax", np.max), ("pmin", np.min)):
        collect = getattr(jax.lax, name)
        for part in ((), (slice(None), 1), (0, 1)):  # matrices, vectors and numbers
            seen = run(lambda x, collect=collect, part=part: collect([x[part]], axes)[0], whole)
            assert_close(seen, reduce(blocks[(slice(None), *part)], axis=0))
    assert_close(run(lambda x: jax.lax.all_gather(x, axes, tiled=True), whole, False), given)
    stacked = run(lambda x: jax.lax.all_gather(x, axes, axis=1), whole, False)
    assert_close(stacked, blocks.swapaxes(0, 1))
    for shift in (1, -1) if axes != ("model", "data") else ():  # JAX 0.10.2 permutes in the order of the mesh
        ring = [(source, (source + shift) % count) for source in range(count)]
        moved = run(lambda x, ring=ring: jax.lax.ppermute(x, axes, ring))
        assert_close(moved, np.roll(blocks, shift, 0).reshape(8, 8))
    numbered = run(lambda x: x * 0 + jax.lax.axis_index(axes))
    assert_close(numbered, np.repeat(np.arange(float(count)), 8 // count)[:, None] * np.ones(8), 0)
    assert int(run(lambda x: jax.lax.axis_size(axes) + 0 * x.sum(dtype=jnp.int32), whole, False)) == count
    scattered = run(lambda x: jax.lax.psum_scatter(x, axes, scatter_dimension=1, tiled=True))
    assert_close(scattered, np.concatenate(np.split(blocks.sum(0), count, axis=1)))
    turned = run(lambda x: jax.lax.all_to_all(x, axes, 1, 0, tiled=True), PartitionSpec(None, axes))
    assert_close(turned, given)


def test_shard_map_over_some_axes(mesh: Mesh) -> None:
    rows, weights = NamedSharding(mesh, PartitionSpec("data", "model")), draw(4, 6)

    def run(x: Any, w: Any) -> Any:
        assert x.shape == (2, 4)  # the rows of a device, and all columns: those are still JAX's
        return jax.lax.psum(x @ w, "data"), 2 * x

    split, whole = PartitionSpec("data"), PartitionSpec()
    options = {"mesh": mesh, "axis_names": {"data"}, "in_specs": (split, whole), "out_specs": (whole, split)}
    total, doubled = jax.jit(jax.shard_map(run, **options))(jax.device_put(X, rows), weights)
    assert_close(total, (X.astype(np.float64) @ weights).reshape(4, 2, 6).sum(0))
    assert_same(doubled, 2 * X)


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


def test_profiler_writes_a_trace(tmp_path: Path) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    with jax.profiler.StepTraceAnnotation("train", step_num=1), jax.profiler.TraceAnnotation("part"):
        jnp.ones(8).sum().block_until_ready()
    jax.profiler.stop_trace()
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"train" in trace.read_bytes()

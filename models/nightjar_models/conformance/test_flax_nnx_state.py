"""Modules, variables, streams of random numbers and filters of `flax.nnx`: what the guides say happens to the state.

Source: the guides "NNX basics", "Split and merge", "Filters", "Randomness" and "State" of flax.readthedocs.io.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.conformance.agreement import assert_close, assert_same, draw, read


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = self.dropout(nnx.relu(self.norm(self.linear(x))))
        self.sow(nnx.Intermediate, "output", y)
        return y


class Count(nnx.Variable[Any]):
    """A kind of variable of the user's own."""


def make_block() -> Block:
    return Block(nnx.Rngs(0))


PARAMETERS = {("linear", "kernel"), ("linear", "bias"), ("norm", "scale"), ("norm", "bias")}
STATISTICS = {("norm", "mean"), ("norm", "var")}


def paths(state: Any) -> set[tuple[Any, ...]]:
    return {path for path, _ in nnx.to_flat_state(state)}


def test_split_and_merge() -> None:
    block = make_block()
    graphdef, params, statistics, streams = nnx.split(block, nnx.Param, nnx.BatchStat, ...)
    assert paths(params) == PARAMETERS
    assert paths(statistics) == STATISTICS
    assert paths(streams) == {("dropout", "rngs", "count"), ("dropout", "rngs", "key")}
    assert isinstance(graphdef, nnx.GraphDef)
    assert isinstance(params, nnx.State)
    doubled = jax.tree.map(lambda value: 2 * value, params)
    merged = nnx.merge(graphdef, doubled, statistics, streams)
    merged.eval()
    assert isinstance(merged, Block)
    assert_close(read(merged.linear.kernel), 2 * read(block.linear.kernel), 0)
    x = draw(4, 3)
    expected = np.maximum((x @ read(merged.linear.kernel)) / np.sqrt(1 + 1e-5) * 2, 0)
    assert_close(merged.linear(x), x @ read(merged.linear.kernel), 5e-6)
    y, _ = nnx.capture(merged, nnx.Intermediate)(x)
    assert_close(y, expected, 5e-6)
    with pytest.raises(ValueError, match="exhaustive"):
        nnx.split(block, nnx.BatchStat)


def test_state_and_update() -> None:
    block = make_block()
    state = nnx.state(block, nnx.Param)
    assert paths(state) == PARAMETERS
    nnx.update(block, jax.tree.map(jnp.zeros_like, state))
    assert not read(block.linear.kernel).any()
    assert not read(block.norm.scale).any()
    assert_close(read(block.norm.var), np.ones(3), 0)
    params, statistics = nnx.state(block, nnx.Param, nnx.BatchStat)
    assert (paths(params), paths(statistics)) == (PARAMETERS, STATISTICS)
    assert paths(nnx.variables(block, nnx.BatchStat)) == STATISTICS


def test_filters() -> None:
    block = make_block()
    everything = paths(nnx.state(block))
    assert paths(nnx.state(block, nnx.Not(nnx.Param))) == everything - PARAMETERS
    assert paths(nnx.state(block, nnx.All(nnx.Param, nnx.PathContains("norm")))) == {
        ("norm", "scale"),
        ("norm", "bias"),
    }
    assert paths(nnx.state(block, nnx.Any(nnx.BatchStat, nnx.Param))) == PARAMETERS | STATISTICS
    assert paths(nnx.state(block, (nnx.BatchStat, nnx.RngState))) == everything - PARAMETERS
    assert paths(nnx.state(block, lambda path, value: path[-1] == "kernel")) == {("linear", "kernel")}
    assert paths(nnx.state(block, True)) == everything
    predicate = nnx.filterlib.to_predicate(nnx.BatchStat)
    assert predicate((), block.norm.mean)
    assert not predicate((), block.norm.scale)


def test_pure_dicts_and_flat_states() -> None:
    block = make_block()
    state = nnx.state(block, nnx.Param)
    pure = nnx.to_pure_dict(state)
    assert set(pure) == {"linear", "norm"}
    assert_same(pure["linear"]["kernel"], block.linear.kernel[...])
    pure["linear"]["kernel"] = jnp.full((3, 3), 7.0)
    nnx.replace_by_pure_dict(state, pure)
    nnx.update(block, state)
    assert_close(read(block.linear.kernel), np.full((3, 3), 7.0), 0)
    flat = dict(nnx.to_flat_state(state))
    assert set(flat) == PARAMETERS
    assert_same(nnx.from_flat_state(flat)["linear"]["kernel"][...], np.full((3, 3), 7.0, np.float32))
    nested = nnx.traversals.unflatten_mapping(nnx.traversals.flatten_mapping({"a": {"b": 1, "c": 2}}))
    assert nested == {"a": {"b": 1, "c": 2}}
    assert nnx.traversals.flatten_mapping({"a": {"b": 1}}, sep="/") == {"a/b": 1}


def test_split_state_and_merge_state() -> None:
    state = nnx.state(make_block())
    params, rest = nnx.split_state(state, nnx.Param, ...)
    assert paths(params) == PARAMETERS
    assert paths(rest) == paths(state) - PARAMETERS
    merged = nnx.merge_state(params, rest)
    assert paths(merged) == paths(state)
    assert_same(merged["norm"]["var"][...], np.ones(3, np.float32))


def test_clone_shares_nothing() -> None:
    block = make_block()
    clone = nnx.clone(block)
    clone.linear.kernel[...] = jnp.zeros((3, 3))
    assert read(block.linear.kernel).any()
    assert not read(clone.linear.kernel).any()


def test_pop_takes_the_variables_out() -> None:
    block = make_block()
    block.calls = Count(jnp.asarray(3))
    popped = nnx.pop(block, Count)
    assert_same(popped["calls"][...], np.asarray(3))
    assert not hasattr(block, "calls")
    assert paths(nnx.state(block, nnx.Param)) == PARAMETERS


def test_variables() -> None:
    variable = nnx.Param(jnp.arange(3.0), note="kept")
    assert_close(variable[...] + 1, np.arange(3.0) + 1, 0)
    assert_close(variable * 2, 2 * np.arange(3.0), 0)
    assert_close(variable[1:], np.arange(1.0, 3.0), 0)
    variable[...] = variable + 1
    variable[0] = 9.0
    assert_close(read(variable), [9, 2, 3], 0)
    assert variable.get_metadata()["note"] == "kept"
    assert variable.shape == (3,)
    assert_close(variable.replace(jnp.ones(2))[...], np.ones(2), 0)
    assert_close(read(variable), [9, 2, 3], 0)


def test_metadata_and_copies_of_variables() -> None:
    variable = nnx.Param(jnp.arange(3.0), note="first")
    variable.set_metadata(note="second", other=1)
    assert (variable.get_metadata("note"), variable.has_metadata("other")) == ("second", True)
    again = pickle.loads(pickle.dumps(variable))
    assert (type(again), again.get_metadata("note"), [float(x) for x in again]) == (nnx.Param, "second", [0, 1, 2])
    variable.copy_from(nnx.Param(jnp.ones(3), note="copied"))
    assert (len(variable), variable.get_metadata("note")) == (3, "copied")
    assert_close(read(variable), np.ones(3), 0)


def test_modules_are_copied_pickled_and_viewed() -> None:
    block, x = make_block(), draw(4, 3)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert_same(other.linear(x), np.asarray(block.linear(x)))
        other.linear.kernel[...] = jnp.zeros((3, 3))
        assert read(block.linear.kernel).any()
    view = nnx.view(block, deterministic=True, use_running_average=True)
    assert (view.dropout.deterministic, view.norm.use_running_average) == (True, True)
    assert (block.dropout.deterministic, block.norm.use_running_average) == (False, False)
    assert view.linear.kernel is block.linear.kernel


@pytest.mark.filterwarnings("ignore:`flax.nnx.State` will be deprecated")  # people still call its methods
def test_methods_of_states() -> None:
    state = nnx.state(make_block())
    params, rest = state.split(nnx.Param, ...)
    assert (paths(params), paths(rest)) == (PARAMETERS, paths(state) - PARAMETERS)
    assert paths(state.filter(nnx.Param)) == PARAMETERS
    assert paths(nnx.State.merge(params, rest)) == paths(params | rest) == paths(state)
    assert paths(state - rest) == PARAMETERS
    assert paths(nnx.State.from_flat_path(params.flat_state())) == PARAMETERS
    params.replace_by_pure_dict(jax.tree.map(lambda x: x + 1, params.to_pure_dict()))
    assert_close(read(params.norm.scale), np.full(3, 2.0), 0)


def test_capture_collects_what_is_sown() -> None:
    block = make_block()
    x = draw(2, 3)
    y, captured = nnx.capture(block, nnx.Intermediate)(x)
    assert_same(captured["output"].get_value()[0], np.asarray(y))
    assert not hasattr(block, "output")


def test_rngs_streams() -> None:
    rngs = nnx.Rngs(0, dropout=1)
    keys = [jax.random.key_data(key).tolist() for key in (rngs.params(), rngs.params(), rngs.noise(), rngs.dropout())]
    assert len({tuple(key) for key in keys}) == 4  # each call is a new key
    again = nnx.Rngs(0, dropout=1)
    # A stream without a seed of its own is the default one, so its third key is that of `noise` above.
    assert [jax.random.key_data(again()).tolist() for _ in range(3)] == keys[:3]
    assert jax.random.key_data(again.dropout()).tolist() == keys[3]
    expected = jax.random.fold_in(jax.random.key(1), 0)  # as the guide says: the stream's key with its count
    assert keys[3] == jax.random.key_data(expected).tolist()
    assert int(read(rngs["dropout"].count)) == 1
    assert ("dropout" in rngs, "noise" in rngs, len(rngs), sorted(rngs)) == (True, False, 2, ["default", "dropout"])
    assert_same(nnx.Rngs(jax.random.PRNGKey(0)).uniform((4,)), np.asarray(nnx.Rngs(0).uniform((4,))))  # an older key
    for wrong in (jnp.ones(3), "0"):
        with pytest.raises(ValueError, match="Invalid rng value"):
            nnx.Rngs(wrong)
    assert {name: stream.tag for name, stream in rngs.items()} == {"default": "default", "dropout": "dropout"}


def test_rngs_draw() -> None:
    rngs = nnx.Rngs(params=3)
    key = jax.random.fold_in(jax.random.key(3), 0)
    assert_same(rngs.params.normal((2, 3)), np.asarray(jax.random.normal(key, (2, 3))))
    assert_same(nnx.Rngs(3).uniform((4,)), np.asarray(jax.random.uniform(key, (4,))))


def test_same_seeds_make_the_same_model() -> None:
    first, second, other = (nnx.state(Block(nnx.Rngs(seed)), nnx.Param) for seed in (0, 0, 1))
    assert_same(first["linear"]["kernel"][...], np.asarray(second["linear"]["kernel"][...]))
    assert not np.array_equal(first["linear"]["kernel"][...], other["linear"]["kernel"][...])


def test_split_rngs() -> None:
    rngs = nnx.Rngs(params=0, dropout=1)

    @nnx.split_rngs(splits=4, only="params")
    def draw_keys(rngs: nnx.Rngs) -> None:
        assert rngs["params"].key[...].shape == (4,)
        assert rngs["dropout"].key[...].shape == ()

    draw_keys(rngs)
    assert rngs["params"].key[...].shape == ()
    same = nnx.Rngs(params=0, dropout=1).broadcast({"params": 3, "dropout": (2, 2)})
    raw = np.asarray(jax.random.key_data(same["params"].key[...]))
    assert (raw == raw[0]).all()
    assert (raw.shape[0], same["dropout"].key[...].shape) == (3, (2, 2))
    fork = rngs.split({"params": 3})
    values = {tuple(row) for row in np.asarray(jax.random.key_data(fork["params"].key[...])).tolist()}
    assert len(values) == 3


def test_iter_modules_and_iter_graph() -> None:
    block = make_block()
    modules = dict(nnx.iter_modules(block))
    assert modules[()] is block
    assert modules[("linear",)] is block.linear
    assert dict(block.iter_modules()) == modules
    assert dict(block.iter_children())["norm"] is block.norm
    nodes = dict(nnx.iter_graph(block))
    assert nodes[("norm", "mean")] is block.norm.mean
    assert ("linear", "kernel") in nodes


def test_train_and_eval_set_all_layers() -> None:
    block = make_block()
    block.eval()
    assert (block.dropout.deterministic, block.norm.use_running_average) == (True, True)
    block.train()
    assert (block.dropout.deterministic, block.norm.use_running_average) == (False, False)
    block.set_attributes(deterministic=True)
    assert block.dropout.deterministic
    assert not block.norm.use_running_average


def test_containers() -> None:
    rngs = nnx.Rngs(0)

    class Tower(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(2)])
            self.layers.append(nnx.Linear(2, 2, rngs=rngs))
            self.named = nnx.Dict(scale=nnx.Param(jnp.ones(2)))
            self.sizes = nnx.static((2, 2))
            self.table = nnx.data(jnp.arange(3))

    tower = Tower()
    assert len(tower.layers) == 3
    assert {path[:2] for path in paths(nnx.state(tower, nnx.Param))} == {
        ("layers", 0), ("layers", 1), ("layers", 2), ("named", "scale"),
    }  # fmt: skip
    leaves = jax.tree.leaves(nnx.state(tower))
    assert len(leaves) == 8  # three kernels, three biases, a scale and the data
    assert isinstance(tower, nnx.Pytree)


@pytest.mark.parametrize("kind", ["List", "Sequential"])
def test_lists_change_as_those_of_python(kind: str) -> None:
    layers: Any = nnx.List([1, 2, 3]) if kind == "List" else nnx.Sequential(1, 2, 3).layers
    plain = [1, 2, 3]
    for values in (layers, plain):
        values.append(4)
        values.insert(1, 5)
        values[-2] = 7
        values[0:2] = [8, 9]
        del values[2]
        values.insert(99, 3)
    assert [len(layers), layers[-1], *layers] == [len(plain), plain[-1], *plain]
    assert list(layers[1:]) == plain[1:]
    for index in (len(plain), -len(plain) - 1):
        for change in (layers.__getitem__, layers.__delitem__, lambda index: layers.__setitem__(index, 0)):
            with pytest.raises(IndexError):
                change(index)


def test_eval_shape_computes_nothing() -> None:
    abstract = nnx.eval_shape(make_block)
    kernel = nnx.state(abstract, nnx.Param)["linear"]["kernel"].get_value()
    assert isinstance(kernel, jax.ShapeDtypeStruct)
    assert (kernel.shape, kernel.dtype) == ((3, 3), jnp.float32)
    graphdef, state = nnx.split(abstract)
    block = nnx.merge(graphdef, jax.tree.map(lambda x: jnp.ones(x.shape, jnp.float32), state))
    assert_close(read(block.linear.kernel), np.ones((3, 3)), 0)


def test_linen_modules_in_nnx() -> None:
    linen = pytest.importorskip("flax.linen")
    model = nnx.bridge.ToNNX(linen.Dense(4), rngs=nnx.Rngs(0))
    x = draw(2, 3)
    nnx.bridge.lazy_init(model, x)
    kernel = read(model.kernel)
    assert kernel.shape == (3, 4)
    assert_close(model(x), x @ kernel)


def test_display_prints_the_layers(capsys: pytest.CaptureFixture[str]) -> None:
    nnx.display(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Rngs(0))
    text = capsys.readouterr().out
    assert all(part in text for part in ("Linear", "kernel", "(3, 2)", "float32", "Rngs"))


def test_flatten_and_unflatten_a_graph() -> None:
    block = make_block()
    graphdef, flat = nnx.graph.flatten(block)
    assert {path for path, _ in flat} == paths(nnx.state(block))
    again = nnx.graph.unflatten(graphdef, flat)
    assert isinstance(again, Block)
    assert_same(again.linear.kernel[...], np.asarray(block.linear.kernel[...]))
    shared = nnx.Dict(first=block.linear, second=block.linear)  # one layer under two names stays one
    merged = nnx.merge(*nnx.split(shared))
    assert merged["first"] is merged["second"]
    assert len(nnx.to_flat_state(nnx.state(shared))) == 2


def test_names_of_kinds_of_variables() -> None:
    assert nnx.variablelib.variable_name_from_type(nnx.Param) == "params"
    assert nnx.variablelib.variable_type_from_name("batch_stats") is nnx.BatchStat

    @nnx.register_variable_name("conformance_counts")
    class Counts(nnx.Variable[Any]):
        pass

    assert nnx.variablelib.variable_type_from_name("conformance_counts") is Counts
    with pytest.raises(ValueError, match="already mapped"):
        nnx.register_variable_name("conformance_counts", Count)


def test_states_are_merged_mapped_and_compared() -> None:
    state = nnx.state(make_block(), nnx.Param)
    assert isinstance(state, nnx.statelib.State)
    sizes = nnx.map_state(lambda path, value: value.get_value().size, state)
    assert dict(nnx.to_flat_state(sizes)) == {
        ("linear", "kernel"): 9, ("linear", "bias"): 3, ("norm", "scale"): 3, ("norm", "bias"): 3,
    }  # fmt: skip
    kernels = nnx.filter_state(state, lambda path, value: "kernel" in path)
    assert paths(kernels) == {("linear", "kernel")}
    assert paths(nnx.statelib.diff(state, kernels)) == PARAMETERS - {("linear", "kernel")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the annotations, which people still write
def test_pytrees_of_data_and_static_values() -> None:
    @nnx.dataclass
    class Scaled(nnx.Pytree):
        values: Any = nnx.data()
        name: str = nnx.static()

    @nnx.dataclass
    class Annotated(nnx.Pytree):
        values: nnx.Data[Any]
        name: nnx.Static[str]

    for kind in (Scaled, Annotated):
        doubled = jax.tree.map(lambda x: 2 * x, kind(jnp.arange(3.0), "rows"))
        assert doubled.name == "rows"
        assert_close(doubled.values, [0, 2, 4], 0)
        assert_close(jax.jit(lambda scaled: scaled.values.sum())(doubled), 6.0)

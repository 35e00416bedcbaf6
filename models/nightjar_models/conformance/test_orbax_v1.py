"""Orbax's second interface, `orbax.checkpoint.v1`: saved values come back whole, in part, on another mesh, and by the
first interface too, as the first one's checkpoints do here.

Source: orbax.readthedocs.io, "Orbax v1 API", "Migration from v0".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nightjar_models.conformance.agreement import assert_same, draw
from nightjar_models.conformance.test_orbax import assert_tree, make_tree

# Checkpoints are restored here as they were saved, on the same devices.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided when restoring"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the names that people use; the next release renames
]


@pytest.fixture
def v1() -> Any:
    if not hasattr(ocp, "v1"):
        pytest.skip("this release of Orbax has no v1")
    return ocp.v1


def test_saves_and_loads(v1: Any, tmp_path: Path) -> None:
    tree = make_tree()
    v1.save_pytree(tmp_path / "tree", tree)
    assert_tree(v1.load_pytree(tmp_path / "tree", tree), tree)
    assert_tree(v1.load_pytree(tmp_path / "tree"), tree)
    metadata = v1.pytree_metadata(tmp_path / "tree").metadata
    assert (metadata["kernel"].shape, metadata["kernel"].dtype) == ((8, 4), np.float32)
    with pytest.raises(ValueError, match="already exists"):
        v1.save_pytree(tmp_path / "tree", tree)
    v1.save_pytree(tmp_path / "tree", {"kernel": jnp.zeros(2)}, overwrite=True)
    assert_tree(v1.load_pytree(tmp_path / "tree"), {"kernel": jnp.zeros(2)})


def test_what_does_not_match_is_refused(v1: Any, tmp_path: Path) -> None:
    v1.save_pytree(tmp_path / "tree", make_tree())
    with pytest.raises(ValueError, match="match"):
        v1.load_pytree(tmp_path / "tree", {"other": jnp.zeros(2)})
    with pytest.raises((OSError, ValueError)):
        v1.load_pytree(tmp_path / "nowhere")


def test_several_items(v1: Any, tmp_path: Path) -> None:
    items = {"state": {"x": jnp.ones(2)}, "note": {"seen": jnp.zeros(1)}}
    v1.save_checkpointables(tmp_path / "two", items)
    assert_tree(v1.load_checkpointables(tmp_path / "two"), items)
    assert_tree(v1.load_pytree(tmp_path / "two", checkpointable_name="note"), items["note"])


def test_loads_onto_another_mesh_and_as_another_type(v1: Any, tmp_path: Path, mesh: Mesh) -> None:
    rows = NamedSharding(Mesh(mesh.devices.reshape(8), ("data",)), PartitionSpec("data"))
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    v1.save_pytree(tmp_path / "tree", {"kernel": jax.device_put(draw(8, 4), rows)})
    abstract = {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=columns)}
    kernel = v1.load_pytree(tmp_path / "tree", abstract)["kernel"]
    assert kernel.sharding.is_equivalent_to(columns, 2)
    assert kernel.addressable_shards[1].data.shape == (8, 2)
    assert_same(np.asarray(kernel), draw(8, 4))
    half = v1.load_pytree(tmp_path / "tree", {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)})["kernel"]
    assert_same(np.asarray(half), np.asarray(jnp.asarray(draw(8, 4)).astype(jnp.bfloat16)))


def test_loads_a_part(v1: Any, tmp_path: Path) -> None:
    tree = make_tree()
    v1.save_pytree(tmp_path / "tree", tree)
    options = v1.options.PyTreeOptions
    part = {"nested": {"step": tree["nested"]["step"]}}
    with v1.Context(pytree_options=options(loading=options.Loading(partial_load=True))):
        assert_tree(v1.load_pytree(tmp_path / "tree", part), part)
    with pytest.raises(ValueError, match="match"):
        v1.load_pytree(tmp_path / "tree", part)


def test_saves_while_the_program_goes_on(v1: Any, tmp_path: Path) -> None:
    tree = make_tree()
    response = v1.save_pytree_async(tmp_path / "tree", tree)
    tree["kernel"] = tree["kernel"] * 0  # what was saved is what it was when it was saved
    response.result()
    assert_tree(v1.load_pytree(tmp_path / "tree", make_tree()), make_tree())


def test_keeps_the_newest_of_the_steps_that_it_saves(v1: Any, tmp_path: Path) -> None:
    training = v1.training
    policies = {
        "save_decision_policy": training.save_decision_policies.FixedIntervalPolicy(2),
        "preservation_policy": training.preservation_policies.LatestN(2),
    }
    with training.Checkpointer(tmp_path / "run", **policies) as checkpointer:
        saved = [checkpointer.save_pytree(step, {"x": jnp.full(3, float(step))}) for step in range(7)]
        assert saved == [True, False, True, False, True, False, True]
        assert sorted(checkpoint.step for checkpoint in checkpointer.checkpoints) == [4, 6]
        assert checkpointer.latest.step == 6
    with training.Checkpointer(tmp_path / "run") as checkpointer:
        assert_same(np.asarray(checkpointer.load_pytree(4)["x"]), np.full(3, 4.0, np.float32))
        assert_same(np.asarray(checkpointer.load_pytree()["x"]), np.full(3, 6.0, np.float32))
        with pytest.raises((OSError, ValueError)):
            checkpointer.load_pytree(99)


def test_each_interface_reads_the_checkpoints_of_the_other(v1: Any, tmp_path: Path) -> None:
    tree = make_tree()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "first", tree)
        v1.save_pytree(tmp_path / "second", tree)
        checkpointer.wait_until_finished()
        assert_tree(v1.load_pytree(tmp_path / "first", tree, checkpointable_name=None), tree)
        (folder,) = (path.parent for path in (tmp_path / "second").rglob("_METADATA"))
        assert_tree(checkpointer.restore(folder, tree), tree)


def test_state_of_a_module_comes_back(v1: Any, tmp_path: Path) -> None:
    graph, state = nnx.split(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    v1.save_pytree(tmp_path / "model", nnx.to_pure_dict(state))
    blank = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: nnx.Linear(4, 3, rngs=nnx.Rngs(1)))))
    nnx.replace_by_pure_dict(state, v1.load_pytree(tmp_path / "model", blank))
    restored, x = nnx.merge(graph, state), draw(2, 4)
    assert_same(np.asarray(restored(x)), np.asarray(nnx.Linear(4, 3, rngs=nnx.Rngs(0))(x)))

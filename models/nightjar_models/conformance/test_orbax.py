"""Orbax's checkpointers and their manager: saved values come back as they were asked for.

Source: the guides "Checkpointing PyTrees", "CheckpointManager" and "Partial loading" of orbax.readthedocs.io.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nightjar_models.conformance.agreement import assert_same, draw

# Checkpoints are restored here as they were saved, on the same devices.
pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided when restoring")


def make_tree() -> dict[str, Any]:
    return {
        "kernel": jnp.asarray(draw(8, 4)),
        "half": jnp.arange(4, dtype=jnp.bfloat16),
        "nested": {"step": jnp.asarray(7, jnp.int32), "list": [np.arange(3), jnp.ones(2)]},
        "number": 3,
    }


def assert_tree(restored: Any, expected: Any) -> None:
    assert jax.tree.structure(restored) == jax.tree.structure(expected)
    for path, leaf in jax.tree_util.tree_flatten_with_path(expected)[0]:
        value: Any = restored
        for part in path:
            value = value[getattr(part, "key", getattr(part, "idx", None))]
        assert np.asarray(value).dtype == np.asarray(leaf).dtype, path
        assert_same(np.asarray(value), np.asarray(leaf))


def test_standard_checkpointer(tmp_path: Path) -> None:
    tree = make_tree()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", tree)
        checkpointer.wait_until_finished()
        assert_tree(checkpointer.restore(tmp_path / "tree", tree), tree)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
        restored = checkpointer.restore(tmp_path / "tree", abstract)
        assert_tree(restored, tree)
        assert isinstance(restored["kernel"], jax.Array)
        with pytest.raises(ValueError, match="already exists"):
            checkpointer.save(tmp_path / "tree", tree)
        checkpointer.save(tmp_path / "tree", {"kernel": jnp.zeros(2)}, force=True)
        checkpointer.wait_until_finished()
        assert_tree(checkpointer.restore(tmp_path / "tree", {"kernel": jnp.ones(2)}), {"kernel": jnp.zeros(2)})


def test_standard_checkpointer_casts_to_what_is_asked_for(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"x": jnp.asarray(draw(4))})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "tree", {"x": jax.ShapeDtypeStruct((4,), jnp.bfloat16)})
    assert restored["x"].dtype == jnp.bfloat16
    assert_same(np.asarray(restored["x"]), np.asarray(jnp.asarray(draw(4)).astype(jnp.bfloat16)))


def test_restore_onto_another_mesh(tmp_path: Path, mesh: Mesh) -> None:
    rows = NamedSharding(Mesh(mesh.devices.reshape(8), ("data",)), PartitionSpec("data"))
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    kernel = draw(8, 4)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"kernel": jax.device_put(kernel, rows)})
        checkpointer.wait_until_finished()
        target = {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=columns)}
        restored = checkpointer.restore(tmp_path / "tree", target)["kernel"]
    assert restored.sharding.is_equivalent_to(columns, 2)
    assert restored.addressable_shards[1].data.shape == (8, 2)
    assert_same(np.asarray(restored), kernel)


def test_pytree_checkpointer(tmp_path: Path) -> None:
    tree = make_tree()
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "tree", tree)
    restored = checkpointer.restore(tmp_path / "tree")
    assert_tree(restored, tree)
    metadata = checkpointer.metadata(tmp_path / "tree").item_metadata
    assert metadata["kernel"].shape == (8, 4)
    args = jax.tree.map(lambda x: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    assert isinstance(checkpointer.restore(tmp_path / "tree", restore_args=args)["kernel"], np.ndarray)


def test_construct_restore_args(tmp_path: Path) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), PartitionSpec("x"))
    target = {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=sharding)}
    args = ocp.checkpoint_utils.construct_restore_args(target)
    assert args["kernel"].sharding == sharding
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "tree", ocp.args.PyTreeSave({"kernel": draw(8, 4)}))
        restored = checkpointer.restore(tmp_path / "tree", ocp.args.PyTreeRestore(target, restore_args=args))
    assert restored["kernel"].sharding == sharding
    assert_same(np.asarray(restored["kernel"]), draw(8, 4))


def test_partial_restore(tmp_path: Path) -> None:
    tree = make_tree()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "tree", ocp.args.PyTreeSave(tree))
        part = {"nested": {"step": tree["nested"]["step"]}}
        restored = checkpointer.restore(tmp_path / "tree", ocp.args.PyTreeRestore(part, partial_restore=True))
    assert_tree(restored, part)


def manage(folder: Path, **options: Any) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(**options))


def save(manager: ocp.CheckpointManager, steps: Any, **arguments: Any) -> list[bool]:
    saved = []
    for step in steps:
        tree = {"x": jnp.full(3, float(step))}
        saved.append(manager.save(step, args=ocp.args.StandardSave(tree), **arguments))
        manager.wait_until_finished()
    return saved


def test_manager_keeps_the_newest(tmp_path: Path) -> None:
    with manage(tmp_path / "run", max_to_keep=2) as manager:
        assert save(manager, (1, 2, 5)) == [True] * 3
        assert sorted(manager.all_steps()) == [2, 5]
        assert manager.latest_step() == 5
        restored = manager.restore(2, args=ocp.args.StandardRestore({"x": jnp.zeros(3)}))
        assert_same(np.asarray(restored["x"]), np.full(3, 2.0, np.float32))
    with manage(tmp_path / "run", max_to_keep=2) as manager:
        manager.delete(5)
        assert manager.latest_step() == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name.isdigit()) == ["2"]


@pytest.mark.parametrize("interval", [1, 7])
def test_manager_knows_its_latest_step(tmp_path: Path, interval: int) -> None:
    steps = [interval * count for count in range(6)]
    with manage(tmp_path / "run", max_to_keep=None) as manager:
        for step in steps:
            save(manager, [step])
            assert manager.latest_step() == step
    with manage(tmp_path / "run", max_to_keep=None) as manager:
        assert sorted(manager.all_steps()) == steps
        for step in reversed(steps):
            assert manager.latest_step() == step
            restored = manager.restore(None, args=ocp.args.StandardRestore({"x": jnp.zeros(3)}))
            assert_same(np.asarray(restored["x"]), np.full(3, float(step), np.float32))
            manager.delete(step)
            manager.reload()
        assert manager.latest_step() is None


def test_manager_saves_at_intervals(tmp_path: Path) -> None:
    with manage(tmp_path / "run", save_interval_steps=3, max_to_keep=None) as manager:
        assert manager.should_save(0)
        assert save(manager, range(7)) == [True, False, False, True, False, False, True]
        assert [manager.should_save(step) for step in (7, 8, 9)] == [False, False, True]
        assert manager.save(7, args=ocp.args.StandardSave({"x": jnp.zeros(3)}), force=True)
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == [0, 3, 6, 7]


def test_manager_keeps_periods_and_the_best(tmp_path: Path) -> None:
    with manage(tmp_path / "periods", max_to_keep=1, keep_period=4) as manager:
        save(manager, range(1, 7))
        assert sorted(manager.all_steps()) == [4, 6]
    options = {"max_to_keep": 2, "best_fn": lambda metrics: metrics["loss"], "best_mode": "min"}
    with manage(tmp_path / "best", **options) as manager:
        for step, loss in enumerate([3.0, 1.0, 2.0, 5.0]):
            save(manager, [step], metrics={"loss": loss})
        assert manager.best_step() == 1
        assert sorted(manager.all_steps()) == [1, 2]


def test_manager_decides_by_policies(tmp_path: Path) -> None:
    policies = ocp.checkpoint_managers
    every_other, newest = policies.FixedIntervalPolicy(2), policies.LatestN(2)
    with manage(tmp_path / "interval", save_decision_policy=every_other, preservation_policy=newest) as manager:
        assert save(manager, range(7)) == [True, False, True, False, True, False, True]
        assert sorted(manager.all_steps()) == [4, 6]
    either = policies.AnySavePolicy([policies.SpecificStepsPolicy(steps=[3]), policies.FixedIntervalPolicy(5)])
    kept = policies.AnyPreservationPolicy([policies.EveryNSteps(5), policies.LatestN(1)])
    with manage(tmp_path / "any", save_decision_policy=either, preservation_policy=kept) as manager:
        assert save(manager, range(1, 9)) == [step in (3, 5) for step in range(1, 9)]
        assert sorted(manager.all_steps()) == [5]
    rarely = policies.ContinuousCheckpointingPolicy(minimum_interval_secs=3600)
    with manage(tmp_path / "rarely", save_decision_policy=rarely) as manager:
        assert save(manager, range(3)) == [True, False, False]


def test_manager_names_its_folders_and_reports_the_end(tmp_path: Path) -> None:
    finished = list[bool]()
    options = ocp.AsyncOptions(timeout_secs=300, post_finalization_callback=lambda: finished.append(True))
    names = ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=6)
    with manage(tmp_path / "run", step_name_format=names, async_options=options) as manager:
        save(manager, [3])
        assert manager.latest_step() == 3
    assert (tmp_path / "run" / "step_000003").is_dir()
    assert finished == [True]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_manager_saves_several_items(tmp_path: Path, asynchronous: bool) -> None:
    tree = make_tree()
    with manage(tmp_path / "run", enable_async_checkpointing=asynchronous) as manager:
        items = {"state": ocp.args.StandardSave(tree), "position": ocp.args.JsonSave({"epoch": 2, "order": [3, 1]})}
        manager.save(3, args=ocp.args.Composite(**items))
        tree["kernel"] = tree["kernel"] * 0  # what was saved is what it was when it was saved
        manager.wait_until_finished()
        wanted = {"state": ocp.args.StandardRestore(make_tree()), "position": ocp.args.JsonRestore()}
        restored = manager.restore(3, args=ocp.args.Composite(**wanted))
        assert restored["position"] == {"epoch": 2, "order": [3, 1]}
        assert_tree(restored["state"], make_tree())
        only = manager.restore(3, args=ocp.args.Composite(position=ocp.args.JsonRestore()))
        assert set(only.keys()) == {"position"}


def test_manager_names_what_is_missing(tmp_path: Path) -> None:
    with manage(tmp_path / "run") as manager:
        save(manager, [1])
        with pytest.raises((FileNotFoundError, ValueError)):
            manager.restore(9, args=ocp.args.StandardRestore({"x": jnp.zeros(3)}))
        with pytest.raises(ValueError, match="match"):
            manager.restore(1, args=ocp.args.StandardRestore({"y": jnp.zeros(3)}))


def test_random_keys_come_back(tmp_path: Path) -> None:
    key = jax.random.key(5)
    with manage(tmp_path / "run") as manager:
        manager.save(0, args=ocp.args.Composite(key=ocp.args.JaxRandomKeySave(key)))
        manager.wait_until_finished()
        restored = manager.restore(0, args=ocp.args.Composite(key=ocp.args.JaxRandomKeyRestore()))["key"]
    assert_same(np.asarray(jax.random.key_data(restored)), np.asarray(jax.random.key_data(key)))


def test_pathways_chooses_who_writes() -> None:
    options = ocp.pathways.CheckpointingImpl.from_options
    kinds = ocp.pathways.CheckpointingImpl
    assert options() is kinds.NO_DISPATCHER
    assert options(use_persistence_array_handler=True) is kinds.PERSISTENCE
    assert options(use_persistence_array_handler=True, use_colocated_python=True) is kinds.COLOCATED_PYTHON

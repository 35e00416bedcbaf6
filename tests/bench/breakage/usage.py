"""The values of typical calls of public names, as plain data.

The bench compares those of the installed library with those of a changed one: where none differs, the change is not
counted as a fault. What the nights run is never looked at here. Random numbers come from fixed seeds.
"""

import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

USAGE = Path(__file__).with_name("usage.toml")
MODULES = {
    "jax": "jax",
    "jnp": "jax.numpy",
    "lax": "jax.lax",
    "nnx": "flax.nnx",
    "optax": "optax",
    "grain": "grain.python",
    "ocp": "orbax.checkpoint",
    "np": "numpy",
}
GRAIN_PYTHON = frozenset({"Batch", "IndexSampler", "MapTransform", "NoSharding", "RandomAccessDataSource"})
TOLERANCE = 1e-4  # relative, and absolute below 1: a smaller change is rounding to the people who use the function


def read_usage() -> dict[str, list[str]]:
    """The expressions of each full name.

    >>> "jax.numpy.where" in read_usage()
    True
    """
    table = tomllib.loads(USAGE.read_text(encoding="utf-8"))
    return {f"{module}.{name}": calls for module, names in table.items() for name, calls in names.items()}


def read_used(path: Path) -> dict[str, int]:
    """The full names in a list of use, each with its number of files."""
    symbols = json.loads(path.read_text(encoding="utf-8"))["symbols"]
    return {expand_alias(symbol["symbol"]): int(symbol["files"]) for symbol in symbols}


def expand_alias(name: str) -> str:
    """A name with its module in full.

    >>> expand_alias("jnp.where"), expand_alias("jax.tree.map"), expand_alias("grain.Batch")
    ('jax.numpy.where', 'jax.tree.map', 'grain.python.Batch')
    """
    first, dot, rest = name.partition(".")
    if first == "grain" and rest not in GRAIN_PYTHON:
        return name
    return f"{({'nn': 'flax.linen'} | MODULES).get(first, first)}{dot}{rest}"


def evaluate(calls: Sequence[str]) -> list[Any]:
    """The values of expressions as plain data; an exception is a value, too: its type."""
    scope = make_scope()
    values: list[Any] = []
    for call in calls:
        try:
            values.append(flatten(eval(call, scope)))  # our own file
        except Exception as error:
            values.append(["raised", type(error).__name__])
    return values


def flatten(value: Any) -> Any:
    """Numbers, text and lists of what a call returned; types and shapes of arrays are kept."""
    import jax
    import numpy as np

    if isinstance(value, (list, tuple)):
        return [flatten(part) for part in value]
    if isinstance(value, dict):
        return [[str(key), flatten(part)] for key, part in value.items()]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype == bool:
            return [array.shape, "bool", array.ravel().tolist()]
        wide = array.astype(complex if np.iscomplexobj(array) else float)
        numbers = np.concatenate([wide.real.ravel(), wide.imag.ravel()]) if np.iscomplexobj(wide) else wide.ravel()
        return [list(array.shape), str(array.dtype), [repr(number) for number in numbers.tolist()]]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(type(value))


def differ(first: Any, second: Any) -> bool:
    """Whether two values differ by more than rounding.

    >>> differ([1.0, "2.00001"], [1.0, "2.0"]), differ(["1.5"], ["1.6"]), differ([1], [1, 2])
    (False, True, True)
    """
    if isinstance(first, list) and isinstance(second, list):
        return len(first) != len(second) or any(map(differ, first, second))
    if first == second:
        return False
    try:
        a, b = float(first), float(second)
    except (TypeError, ValueError):
        return True
    return not abs(a - b) <= TOLERANCE * max(1.0, abs(b))


def make_scope() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    numbers = np.random.default_rng(7)

    class Plain(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(4, 3, rngs=rngs)
            self.second = nnx.Linear(3, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.second(nnx.relu(self.first(x)))

    class Small(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(4, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.d = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.d(self.norm(self.linear(x)))

    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.n = nnx.Variable(jnp.array(0))

    class Sower(nnx.Module):
        def __call__(self, x: Any) -> Any:
            self.sow(nnx.Intermediate, "seen", x * 2)
            return x

    class Holder(nnx.Module):
        def __init__(self, value: Any) -> None:
            self.value = nnx.data(value)

    def count(module: Any) -> Any:
        module.n[...] += 1
        return module.n[...] * 10

    scope: dict[str, Any] = {name: import_module(module) for name, module in MODULES.items()}
    scope |= {"Plain": Plain, "Small": Small, "Counter": Counter, "Sower": Sower, "Holder": Holder, "count": count}
    scope |= {
        "X": jnp.asarray(numbers.normal(size=(3, 4)), jnp.float32),
        "Y": jnp.asarray(numbers.normal(size=(4, 3)), jnp.float32),
        "P": jnp.asarray(numbers.uniform(0.2, 3.0, size=(3, 4)), jnp.float32),
        "V": jnp.asarray([0.5, -1.0, 2.0, 0.25, -0.125, 1.5], jnp.float32),
        "K": jnp.asarray([3, 1, 4, 1, 5, 2]),
        "R": lambda: nnx.Rngs(0),
        "IMAGES": jnp.asarray(numbers.normal(size=(2, 6, 6, 2)), jnp.float32),
        "TOKENS": jnp.asarray(numbers.normal(size=(2, 5, 8)), jnp.float32),
        "HEADS": jnp.asarray(numbers.normal(size=(2, 5, 2, 4)), jnp.float32),
        "leaves": lambda tree: [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)],
    }
    scope |= make_training(scope) | make_files(scope)
    return scope


def is_key(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def make_training(scope: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    def steps(transform: Any) -> list[Any]:
        parameters = {"a": scope["X"], "b": scope["V"]}
        state, seen = transform.init(parameters), []
        for _ in range(5):
            gradients = jax.tree.map(lambda p: 2 * p - 0.3, parameters)
            updates, state = transform.update(gradients, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
            seen.append(jax.tree.leaves(parameters))
        return seen

    def train(make: Callable[[Any], Any], update: Callable[[Any, Any, Any], None]) -> list[Any]:
        module = scope["Plain"](nnx.Rngs(0))
        optimizer, losses = make(module), []
        for _ in range(4):
            loss, gradients = nnx.value_and_grad(lambda m: ((m(scope["X"]) - 1) ** 2).mean())(module)
            update(optimizer, module, gradients)
            losses.append(loss)
        return [*losses, optimizer.step[...]]

    def measure(metric: Any) -> list[Any]:
        seen = []
        for factor in (1.0, -2.0):
            metric.update(loss=jnp.float32(factor), logits=factor * scope["X"], labels=scope["K"][:3] % 4)
            seen.append(list(metric.compute().values()))
        metric.reset()
        metric.update(loss=jnp.float32(5.0), logits=scope["X"], labels=jnp.array([0, 1, 2]))
        return [*seen, list(metric.compute().values())]

    def attention(**options: Any) -> Any:
        options.setdefault("decode", False)
        return nnx.MultiHeadAttention(num_heads=2, in_features=8, qkv_features=8, rngs=nnx.Rngs(0), **options)

    def decode(module: Any) -> list[Any]:
        tokens = scope["TOKENS"]
        module.init_cache(tokens.shape)
        return [module(tokens[:, place : place + 1]) for place in range(3)]

    def sharded() -> Any:
        initializer = nnx.with_partitioning(nnx.initializers.ones, (None, "x"))
        with jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))):
            return nnx.Linear(4, 2, kernel_init=initializer, rngs=nnx.Rngs(0))

    return {
        "sharded": sharded,
        "steps": steps,
        "trains": lambda make: train(make, lambda optimizer, module, gradients: optimizer.update(module, gradients)),
        "trains_both": lambda make: train(make, lambda optimizer, module, gradients: optimizer.update(gradients)),
        "measure": measure,
        "attention": attention,
        "decode": decode,
    }


def make_files(scope: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    import grain.python as grain
    import jax
    import orbax.checkpoint as ocp

    class Double(grain.MapTransform):  # type: ignore[misc]
        def map(self, element: int) -> int:
            return 2 * element

    def loader(
        *, shuffle: bool, batch: int = 2, drop: bool = True, double: bool = False, epochs: int = 1
    ) -> Iterator[Any]:
        sampler = grain.IndexSampler(10, grain.NoSharding(), shuffle=shuffle, num_epochs=epochs, seed=3)
        operations = [*([Double()] if double else []), grain.Batch(batch, drop_remainder=drop)]
        data = grain.DataLoader(data_source=range(10), sampler=sampler, operations=operations, worker_count=0)
        return iter(data)

    def resume() -> list[Any]:
        data = grain.MapDataset.range(9).shuffle(seed=1).to_iter_dataset().batch(2)
        iterator = iter(data)
        seen = [next(iterator), next(iterator)]
        state = iterator.get_state()
        ahead = [next(iterator)]
        iterator.set_state(state)
        return [seen, ahead, next(iterator)]

    tree = {"a": scope["X"], "b": {"c": scope["K"]}}

    def round_trip(checkpointer: Any) -> list[Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "one"
            checkpointer.save(path, tree)
            if hasattr(checkpointer, "wait_until_finished"):
                checkpointer.wait_until_finished()
            return [path.name, jax.tree.leaves(checkpointer.restore(path))]

    def manage(**options: Any) -> list[Any]:
        with (
            tempfile.TemporaryDirectory() as folder,
            ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(**options)) as manager,
        ):
            saved = [
                manager.save(step, args=ocp.args.StandardSave(jax.tree.map(lambda x, s=step: x + s, tree)))
                for step in range(4)
            ]
            manager.wait_until_finished()
            latest = manager.latest_step()
            restored = manager.restore(latest, args=ocp.args.StandardRestore(tree))
            return [saved, manager.all_steps(), latest, jax.tree.leaves(restored)]

    return {"loader": loader, "resume": resume, "round_trip": round_trip, "manage": manage}

"""The GPT and the ViT of Flax's own layers, in the loops that Flax's documentation shows; our parameters.

`nnx`: `nnx.jit` over the module and an `nnx.Optimizer`, as in Flax's tutorials, with the cache of its performance guide
(`nnx.cached_partial`), with which a step of `vit_tiny` takes 0.8 of the time. `state`: `jax.jit` over a split state in
a `flax.struct` dataclass, as in Flax's language-model example. `our-nnx` and `our-state`: these loops over our own
model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx, struct

from nightjar_models.architectures.layers import EPSILON, brightness
from nightjar_models.architectures.vit import patches
from nightjar_models.parallel.sharding import Keys
from nightjar_models.presets import find_preset
from nightjar_models.presets.sizes import GPTConfig
from nightjar_models.training.step import make_optimizer
from nightjar_models.training.tasks import Task, find_task

Loss = Callable[[Any, Any], Any]  # of a module and a batch


class Block(nnx.Module):
    """Attention and a feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, ours: Any, rngs: nnx.Rngs) -> None:
        """Begins with our block's parameters."""
        width, _, heads, _ = ours.qkv.shape
        norm = partial(nnx.LayerNorm, width, epsilon=EPSILON, use_bias=False, rngs=rngs)
        self.attention_norm, self.feed_forward_norm = norm(), norm()
        self.attention = nnx.MultiHeadAttention(
            heads, width, use_bias=False, decode=False, deterministic=True, keep_rngs=False, rngs=rngs
        )
        self.into = nnx.Linear(*ours.w_in.shape, rngs=rngs)
        self.out = nnx.Linear(*ours.w_out.shape, rngs=rngs)
        set_values(self.attention_norm, scale=ours.attention_norm)
        set_values(self.feed_forward_norm, scale=ours.feed_forward_norm)
        for number, part in enumerate([self.attention.query, self.attention.key, self.attention.value]):
            set_values(part, kernel=ours.qkv[:, number])
        set_values(self.attention.out, kernel=ours.projection)
        set_values(self.into, kernel=ours.w_in, bias=ours.b_in)
        set_values(self.out, kernel=ours.w_out, bias=ours.b_out)

    def __call__(self, x: Any, *, causal: bool) -> Any:
        """One layer of the stack."""
        x = x + self.attention(self.attention_norm(x), is_causal=causal)
        return x + self.out(nnx.gelu(self.into(self.feed_forward_norm(x))))


class Model(nnx.Module):
    """What both models share: positions, blocks and a head behind a norm."""

    def __init__(self, ours: Any, head: Any, rngs: nnx.Rngs) -> None:
        """Begins with our model's parameters; `head` is its last matrix."""
        self.positions = nnx.Param(ours.position_embedding[...])
        self.blocks = nnx.List([Block(block, rngs) for block in ours.blocks])
        self.norm = nnx.LayerNorm(ours.norm.size, epsilon=EPSILON, use_bias=False, rngs=rngs)
        self.head = nnx.Linear(*head.shape, use_bias=False, rngs=rngs)
        set_values(self.norm, scale=ours.norm)
        set_values(self.head, kernel=head)

    def run_blocks(self, x: Any, *, causal: bool) -> Any:
        """The stack and the last norm, of positions that are embedded."""
        x = x + self.positions[...]
        for block in self.blocks:
            x = block(x, causal=causal)
        return self.norm(x)


class GPT(Model):
    """Logits of the next byte."""

    def __init__(self, ours: Any, rngs: nnx.Rngs) -> None:
        super().__init__(ours, ours.unembedding, rngs)
        self.tokens = nnx.Embed(*ours.token_embedding.shape, rngs=rngs)
        set_values(self.tokens, embedding=ours.token_embedding)

    def __call__(self, tokens: Any) -> Any:
        return self.head(self.run_blocks(self.tokens(tokens), causal=True))


class ViT(Model):
    """Logits of the classes; the patches are multiplied, which takes 0.97 of the time of a convolution with strides."""

    def __init__(self, ours: Any, rngs: nnx.Rngs) -> None:
        super().__init__(ours, ours.head, rngs)
        self.side = ours.patch
        self.embed = nnx.Linear(*ours.patch_embedding.shape, use_bias=False, rngs=rngs)
        set_values(self.embed, kernel=ours.patch_embedding)

    def __call__(self, images: Any) -> Any:
        x = self.embed(patches(images, self.side))
        return self.head(self.run_blocks(x, causal=False).mean(axis=1))


def set_values(module: nnx.Module, **values: Any) -> None:
    """Gives parameters of a module these values, in the shapes that it has for them; each a copy of its own."""
    for name, value in values.items():
        its = getattr(module, name)
        its.set_value(jax.numpy.array(np.asarray(value[...]).reshape(its.shape)))


def make(preset: str, style: str) -> Any:
    """The step of a preset: a loop, over Flax's layers or our own model; a loop over `jax.jit` can `lower`."""
    config = find_preset(preset)()
    task = find_task(config)
    model = jax.jit(lambda: nnx.split(task.build(Keys(jax.random.key(0)))))
    _, values = model()
    graph, _ = nnx.split(nnx.eval_shape(lambda: task.build(Keys(0))))
    ours = nnx.merge(graph, values)
    loop = make_nnx if style.endswith("nnx") else StateLoop
    if style.startswith("our-"):
        return loop(config, partial(measure_ours, task), ours)
    return loop(config, measure, (GPT if isinstance(config.model, GPTConfig) else ViT)(ours, nnx.Rngs(0)))


def measure_ours(task: Task, model: Any, batch: Any) -> Any:
    """The loss that our trainer minimises."""
    return task.measure(model, batch)["loss"]


def measure(model: Any, batch: Any) -> Any:
    """The mean cross entropy of the next byte or of the digit."""
    if "tokens" in batch:
        tokens = batch["tokens"]
        logits, labels = model(tokens[:, :-1]), tokens[:, 1:]
    else:
        logits, labels = model(brightness(batch["image"])), batch["label"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_optax(config: Any) -> Any:
    """Our optimizer over a tree of arrays: decay for matrices alone, then everything else as ours."""
    listed = make_optimizer(config)

    def init(parameters: Any) -> Any:
        return listed.init(jax.tree.leaves(parameters))

    def update(gradients: Any, memory: Any, parameters: Any) -> Any:
        leaves, tree = jax.tree.flatten(gradients)
        found, memory = listed.update(leaves, memory, jax.tree.leaves(parameters))
        return jax.tree.unflatten(tree, found), memory

    return optax.GradientTransformation(init, update)


def make_nnx(config: Any, measured: Loss, module: nnx.Module) -> Callable[[Any], float]:
    """The tutorial's loop."""
    optimizer = nnx.Optimizer(module, make_optax(config), wrt=nnx.Param)

    @nnx.jit
    def train_step(module: Any, optimizer: Any, batch: Any) -> Any:
        loss, gradients = nnx.value_and_grad(measured)(module, batch)
        optimizer.update(module, gradients)
        return loss

    cached = nnx.cached_partial(train_step, module, optimizer)
    return lambda batch: float(cached(batch))


class StateLoop:
    """The example's loop."""

    def __init__(self, config: Any, measured: Loss, module: nnx.Module) -> None:
        graph, parameters = nnx.split(module)
        transform = make_optax(config)

        @struct.dataclass
        class TrainState:
            params: Any
            opt_state: Any

        @partial(jax.jit, donate_argnums=0)
        def train_step(state: Any, batch: Any) -> Any:
            def loss(parameters: Any) -> Any:
                return measured(nnx.merge(graph, parameters), batch)

            value, gradients = jax.value_and_grad(loss)(state.params)
            updates, memory = transform.update(gradients, state.opt_state, state.params)
            return state.replace(params=optax.apply_updates(state.params, updates), opt_state=memory), value

        self.state = TrainState(params=parameters, opt_state=transform.init(parameters))
        self.train_step = train_step

    def __call__(self, batch: Any) -> float:
        self.state, loss = self.train_step(self.state, batch)
        return float(loss)

    def lower(self, batch: Any) -> jax.stages.Lowered:
        """What `jax.jit` compiles."""
        return self.train_step.lower(self.state, batch)

"""Haliax and Levanter cell: named tensors compute the same as positional ones, and a tiny GPT-2 learns.

A contraction over named axes equals `einsum` in any order of axes; Levanter's causal attention equals the softmax that
defines it, with both backends that a CPU has; a GPT-2 begins at the entropy of guessing, log(vocabulary), and learns
one batch by heart. Checkpoints, LoRA and Muon are in `levanter_gpt2`. All is optimized little: without that, compiling
takes most of the cell's time.
"""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, compile_quickly, time_calls
from nightjar_models.ecosystem.levanter_gpt2 import check_checkpoints, check_muon

STEPS = 40


@compile_quickly()
def run() -> Finding:
    """Runs the cell."""
    import equinox as eqx
    import haliax as hax
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from levanter.layers.attention import AttentionBackend, AttentionMask, dot_product_attention
    from levanter.models.gpt2 import Gpt2Config, Gpt2LMHeadModel

    batch, heads, key_size = hax.Axis("batch", 2), hax.Axis("heads", 3), hax.Axis("key_size", 8)
    position, key_position = hax.Axis("position", 16), hax.Axis("key_position", 16)

    @jax.jit
    def compute():
        one, two, three = jax.random.split(jax.random.key(0), 3)
        query = hax.random.normal(one, (batch, position, heads, key_size))
        key = hax.random.normal(two, (heads, batch, key_size, key_position))  # another order: names decide
        value = hax.random.normal(three, (batch, key_position, heads, key_size))
        product = hax.dot(query, key, axis=key_size).rearrange((batch, heads, position, key_position))

        def attend(backend):
            attended = dot_product_attention(
                position, key_position, key_size, query, key, value,
                mask=AttentionMask.causal(), attn_backend=backend, flash_block_size=4,
            )  # fmt: skip
            return attended.rearrange((batch, position, heads, key_size))

        attended = (attend(AttentionBackend.VANILLA), attend(AttentionBackend.JAX_FLASH))
        return [one.array for one in (query, key, value, product, *attended)]

    query, key, value, product, *attended = (np.asarray(one, np.float64) for one in compute())
    scores = np.einsum("bqhd,hbdk->bhqk", query, key)
    weights = np.exp(scores / math.sqrt(key_size.size)) * np.tril(np.ones((16, 16)))
    expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), value)

    vocabulary = hax.Axis("vocab", 128)
    config = Gpt2Config(seq_len=32, hidden_dim=32, num_layers=2, num_heads=2, gradient_checkpointing=False)
    place = config.Pos
    optimizer = optax.adam(1e-2)

    @eqx.filter_jit
    def start():
        model = Gpt2LMHeadModel.init(vocabulary, config, key=jax.random.key(1))
        tokens = hax.random.randint(jax.random.key(2), (batch, place), 0, vocabulary.size)
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)), tokens

    def loss(model):
        logits = model(tokens, attn_mask=AttentionMask.causal()).rearrange((batch, place, vocabulary)).array
        log = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.mean(jnp.take_along_axis(log, tokens.array[:, 1:, None], axis=-1))

    @eqx.filter_jit
    def train_step(model, memory):
        now, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, memory = optimizer.update(gradients, memory, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), memory, now

    model, memory, tokens = start()
    losses: list[float] = []

    def advance() -> object:
        nonlocal model, memory
        model, memory, now = train_step(model, memory)
        losses.append(float(now))
        return now

    samples = time_calls(advance, items=1, unit="train steps/s", calls=STEPS)
    return Finding(
        checks=[
            Check(
                name="contraction_difference",
                value=float(np.abs(product - scores).max()),
                expected=0.0,
                tolerance=1e-5,
                why="named axes against NumPy's einsum, float32",
            ),
            Check(
                name="attention_difference",
                value=float(np.abs(np.stack(attended) - expected).max()),
                expected=0.0,
                tolerance=1e-5,
                why="causal attention against its formula, plain and in blocks of four",
            ),
            Check(
                name="first_loss",
                value=losses[0],
                expected=math.log(vocabulary.size),
                tolerance=0.3,
                why="log(vocabulary), for nothing is learned yet",
            ),
            Check(name="last_loss", value=losses[-1], expected=0.0, tolerance=1.0, why="one batch learned by heart"),
            *check_checkpoints(),
            check_muon(),
        ],
        samples=samples,
    )

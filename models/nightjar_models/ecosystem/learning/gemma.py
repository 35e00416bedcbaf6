"""Gemma cell: Tunix's Gemma 3, a tiny one, computes its formula's logits, and writes the same with a cache.

The formula is NumPy's in float64: embeddings times sqrt(D), norms before and after each half of a layer, normalized and
rotated queries and keys, two query heads to a key head, a sliding window in all layers but the last, GELU gates.

V tokens, D features, F hidden, N heads, K key heads, H features of a head, L layers, T tokens of a row.

Source: Gemma Team 2025, "Gemma 3 Technical Report" (arXiv:2503.19786), section 2.
"""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, compile_quickly, time_calls

V, D, F, N, K, H, L, T = 48, 32, 64, 4, 2, 8, 6, 12
WINDOW, LOCAL, GLOBAL = 5, 10_000, 1_000_000


@compile_quickly()
def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx
    from tunix.models.gemma3.model import Gemma3, ModelConfig

    config = ModelConfig(
        num_layers=L, num_embed=V, embed_dim=D, hidden_dim=F, num_heads=N, head_dim=H, num_kv_heads=K,
        sliding_window_size=WINDOW, local_base_frequency=LOCAL, global_base_frequency=GLOBAL, param_dtype=jnp.float32,
    )  # fmt: skip
    model = Gemma3(config, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)
    random = np.random.default_rng(0)  # Tunix begins with zeros in places, which would hide a part of the formula
    state = jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.3, leaf.shape), jnp.float32), state)
    tokens = random.integers(0, V, (1, T))
    apply = jax.jit(lambda *given: nnx.merge(graph, state)(*given))
    places, causal = jnp.arange(T)[None], jnp.tril(jnp.ones((1, T, T), bool))
    samples = time_calls(lambda: apply(tokens, places, None, causal)[0], items=T, unit="tokens/s")
    logits = np.asarray(apply(tokens, places, None, causal)[0])[0]
    empty = {"k": jnp.zeros((1, T, K, H)), "v": jnp.zeros((1, T, K, H)), "end_index": jnp.zeros(1, jnp.int32)}
    cache = {f"layer_{number}": empty for number in range(L)}
    written = []
    for place in range(T):
        seen = places[:, None, :] <= place
        step, cache = apply(tokens[:, place : place + 1], places[:, place : place + 1], cache, seen)
        written.append(np.asarray(step)[0, 0])
    expected = find_logits(nnx.to_pure_dict(state), tokens[0])
    return Finding(
        checks=[
            Check(
                name="logits_difference",
                value=float(np.abs(logits - expected).max() / np.abs(expected).max()),
                expected=0.0,
                tolerance=1e-5,
                why="largest, against NumPy in float64, as a part of the largest logit",
            ),
            Check(
                name="cache_difference",
                value=float(np.abs(np.stack(written) - expected).max() / np.abs(expected).max()),
                expected=0.0,
                tolerance=1e-5,
                why="token after token with the keys and values of those before",
            ),
        ],
        samples=samples,
    )


def find_logits(weights, tokens):
    """The logits of a row, by the formula."""
    import jax
    import numpy as np

    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * (1 + scale["scale"])

    def rotate(x, base):
        angle = np.arange(T)[:, None, None] * base ** -(np.arange(0, H, 2) / H)
        low, high = np.split(x, 2, axis=-1)
        turned = [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)]
        return np.concatenate(turned, axis=-1)

    def attend(x, layer, *, window, base):
        query = rotate(norm(np.einsum("td,ndh->tnh", x, layer["q_einsum"]["w"]), layer["_query_norm"]), base)
        key, value = np.einsum("td,ckdh->ctkh", x, layer["kv_einsum"]["w"]).repeat(N // K, axis=2)
        key = rotate(norm(key, layer["_key_norm"]), base)
        distance = np.arange(T)[:, None] - np.arange(T)
        scores = np.exp(np.einsum("tnh,snh->nts", query, key) / math.sqrt(H)) * ((distance >= 0) & (distance < window))
        attended = np.einsum("nts,snh->tnh", scores / scores.sum(axis=-1, keepdims=True), value)
        return np.einsum("tnh,nhd->td", attended, layer["attn_vec_einsum"]["w"])

    embedding = weights["embedder"]["input_embedding"]
    x = embedding[tokens] * math.sqrt(D)
    for number in range(L):
        layer = weights["layers"][number]
        window, base = WINDOW, LOCAL
        if number % 6 == 5:
            window, base = T, GLOBAL
        attended = attend(norm(x, layer["pre_attention_norm"]), layer["attn"], window=window, base=base)
        x = x + norm(attended, layer["post_attention_norm"])
        inner = norm(x, layer["pre_ffw_norm"])
        gate, up, down = (layer["mlp"][name]["kernel"] for name in ("gate_proj", "up_proj", "down_proj"))
        opened = inner @ gate
        opened = 0.5 * opened * (1 + np.tanh(math.sqrt(2 / math.pi) * (opened + 0.044715 * opened**3)))
        x = x + norm((opened * (inner @ up)) @ down, layer["post_ffw_norm"])
    return norm(x, weights["final_norm"]) @ embedding.T

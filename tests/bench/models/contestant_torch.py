"""The same GPT and ViT in PyTorch: eager, or by `torch.compile`; our parameters, fused AdamW, fused attention.

In: a preset and `eager` or `compile`. Out: its training step, from a NumPy batch to the loss as a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
from flax import nnx

from nightjar_models.parallel.sharding import Keys
from nightjar_models.presets import find_preset
from nightjar_models.training.tasks import find_task

Parameters = dict[str, torch.nn.Parameter]


def read_parameters(config: Any) -> Parameters:
    """Our first parameters, by path."""
    task = find_task(config)
    state = jax.jit(lambda: nnx.split(task.build(Keys(jax.random.key(0))))[1])()
    return {
        ".".join(map(str, path)): torch.nn.Parameter(torch.from_numpy(np.array(variable.get_value())))
        for path, variable in nnx.to_flat_state(state)
    }


def run_block(x: torch.Tensor, p: Parameters, name: str, causal: bool) -> torch.Tensor:
    """Attention and feed-forward layer of one block."""
    width = x.shape[-1]
    qkv, projection = p[f"{name}.qkv"], p[f"{name}.projection"]
    _, _, heads, size = qkv.shape
    h = F.layer_norm(x, (width,), weight=p[f"{name}.attention_norm"])
    q, k, v = (h @ qkv.reshape(width, -1)).view(*x.shape[:2], 3, heads, size).permute(2, 0, 3, 1, 4)
    taken = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + taken.transpose(1, 2).reshape(*x.shape[:2], -1) @ projection.reshape(-1, width)
    h = F.layer_norm(x, (width,), weight=p[f"{name}.feed_forward_norm"])
    h = F.gelu(h @ p[f"{name}.w_in"] + p[f"{name}.b_in"], approximate="tanh")
    return x + h @ p[f"{name}.w_out"] + p[f"{name}.b_out"]


def gpt_loss(config: Any, p: Parameters, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean negative log likelihood of each next byte."""
    tokens = batch["tokens"].long()
    x = p["token_embedding"][tokens[:, :-1]] + p["position_embedding"]
    for number in range(config.model.layers):
        x = run_block(x, p, f"blocks.{number}", causal=True)
    logits = F.layer_norm(x, (x.shape[-1],), weight=p["norm"]) @ p["unembedding"]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def vit_loss(config: Any, p: Parameters, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of the digit."""
    side, patch = config.model.image, config.model.patch
    count = side // patch
    tiles = batch["image"].view(-1, count, patch, count, patch).transpose(2, 3).reshape(-1, count * count, patch**2)
    x = tiles @ p["patch_embedding"] + p["position_embedding"]
    for number in range(config.model.layers):
        x = run_block(x, p, f"blocks.{number}", causal=False)
    logits = F.layer_norm(x, (x.shape[-1],), weight=p["norm"]).mean(1) @ p["head"]
    return F.cross_entropy(logits, batch["label"].long())


def make(preset: str, mode: str) -> Callable[[Any], float]:
    """The step of a preset."""
    config = find_preset(preset)()
    p = read_parameters(config)
    groups = [
        {"params": [one for one in p.values() if one.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in p.values() if one.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, config.beta2), fused=True)
    loss_of = gpt_loss if "tokens" in find_task(config).item else vit_loss

    def evaluate(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss_of(config, p, batch)

    compiled = torch.compile(evaluate) if mode == "compile" else evaluate
    done = 0

    def step(batch: Any) -> float:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, done / config.warmup_steps)
        optimizer.zero_grad(set_to_none=True)
        loss = compiled({name: torch.from_numpy(array) for name, array in batch.items()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), config.clip_norm)
        optimizer.step()
        done += 1
        return float(loss.detach())

    return step

"""Checks of Levanter's checkpoints of Hugging Face, its LoRA and its Muon.

A GPT-2 in Hugging Face's format, written here, gives in Levanter the logits of NumPy's formula, and is exported with
the same weights. LoRA's adapters, saved for PEFT and merged into an exported checkpoint, explain each merged weight. A
step of Muon is the polynomial of the gradient's singular values.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; Hu et al. 2021, "LoRA"
(arXiv:2106.09685), section 4.1; Jordan 2024, "Muon" (kellerjordan.github.io/posts/muon).
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from nightjar_models.ecosystem.cell import Check

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 64, 32, 2, 2, 16
RANK, ALPHA = 2, 4.0
RATE, ROWS, COLUMNS = 0.1, 10, 6


def check_checkpoints() -> list[Check]:
    """The checks of import, export and LoRA."""
    import equinox as eqx
    import haliax as hax
    import jax
    import jax.numpy as jnp
    import numpy as np
    from levanter.compat.hf_checkpoints import HFCheckpointConverter
    from levanter.layers.attention import AttentionMask
    from levanter.lora import LoraConfig, loraize, save_merged_hf_model, save_peft_pretrained
    from levanter.models.gpt2 import Gpt2Config, Gpt2LMHeadModel
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, PreTrainedTokenizerFast

    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCABULARY, LENGTH, np.int32)
    words = {str(number): number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")))
    compute = eqx.filter_jit(
        lambda model: model(hax.named(jnp.asarray(tokens), model.Pos), AttentionMask.causal()).array
    )
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        original, exported, adapted, merged = (str(Path(folder, name)) for name in "abcd")
        weights = write_checkpoint(original, random)
        converter = HFCheckpointConverter(
            Gpt2Config, original, HfConfigClass=GPT2Config, tokenizer=tokenizer, ignore_prefix="transformer"
        )
        model = converter.load_pretrained(Gpt2LMHeadModel)
        options = {"save_tokenizer": False, "save_reference_code": False}
        converter.save_pretrained(model, exported, **options)
        back = load_file(f"{exported}/model.safetensors")
        config = LoraConfig(r=RANK, alpha=ALPHA)
        lora = loraize(model, config, jax.random.key(1))
        save_peft_pretrained(lora, config, original, adapted)
        save_merged_hf_model(lora, converter, merged, **options)
        adapters = load_file(f"{adapted}/adapter_model.safetensors")
        sums = load_file(f"{merged}/model.safetensors")
        logits, changed = np.asarray(compute(model)), np.asarray(compute(lora))
    explained = dict(weights)
    for name in {name.rpartition(".lora_")[0] for name in adapters}:
        down, up = (adapters[f"{name}.lora_{part}.weight"] for part in "AB")
        target = name.removeprefix("base_model.model.transformer.") + ".weight"
        explained[target] = weights[target] + ALPHA / RANK * (up @ down).T
    return [
        compare("imported_logits_difference", logits, find_logits(weights, tokens), "GPT-2 by NumPy, float64"),
        compare("exported_weights_difference", flatten(back), flatten(weights), "what was imported"),
        compare("merged_weights_difference", flatten(sums), flatten(explained), "W + alpha / r B A of every layer"),
        compare("adapted_logits_difference", changed, find_logits(explained, tokens), "with adapters not merged"),
        Check(
            name="adapters",
            value=len(adapters),
            expected=2 * 4 * LAYERS,
            tolerance=0,
            why="A and B of the four linear layers of each block",
        ),
    ]


def write_checkpoint(folder, random):
    """Writes a GPT-2 of random weights as Hugging Face does, and returns them."""
    import numpy as np
    from safetensors.numpy import save_file
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, architectures=["GPT2LMHeadModel"],
    )  # fmt: skip
    config.save_pretrained(folder)
    linear: dict[str, tuple[int, ...]] = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
    linear |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (LENGTH, WIDTH)}
    norms = ["ln_f", *(f"h.{layer}.{name}" for layer in range(LAYERS) for name in ("ln_1", "ln_2"))]
    shapes |= {f"{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")}
    for layer in range(LAYERS):
        shapes |= {f"h.{layer}.{name}.weight": shape for name, shape in linear.items()}
        shapes |= {f"h.{layer}.{name}.bias": shape[1:] for name, shape in linear.items()}
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    named = {f"transformer.{name}": values for name, values in weights.items()}
    save_file(named, f"{folder}/model.safetensors", metadata={"format": "pt"})
    return weights


def find_logits(weights, tokens):
    """The logits of GPT-2 for a row of tokens, by its formula."""
    import numpy as np

    weights = {name: values.astype(np.float64) for name, values in weights.items()}

    def norm(x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def project(x, name):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["wte.weight"][tokens] + weights["wpe.weight"]
    for layer in range(LAYERS):
        joined = project(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn")
        query, key, value = joined.reshape(LENGTH, 3, HEADS, -1).transpose(1, 2, 0, 3)
        scores = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(WIDTH // HEADS)) * np.tri(LENGTH)
        attended = (scores / scores.sum(axis=-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(x.shape)
        x = x + project(attended, f"h.{layer}.attn.c_proj")
        inner = project(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        gated = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + project(gated, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ weights["wte.weight"].T


def check_muon():
    """The check of Muon's first step."""
    import haliax as hax
    import jax
    import numpy as np
    from levanter.optim import MuonConfig

    axes = hax.Axis("in", COLUMNS), hax.Axis("out", ROWS)
    layer = hax.nn.Linear.init(*axes, key=jax.random.key(0), use_bias=False, out_first=True)
    config = MuonConfig(lr=RATE, learning_rate=RATE, nesterov=False, lr_schedule="constant", warmup=0)
    optimizer = config.build(10)
    gradient = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(3), leaf.shape), layer)
    step, _ = optimizer.update(gradient, optimizer.init(layer), layer)
    left, values, right = np.linalg.svd(np.asarray(gradient.weight.array, np.float64), full_matrices=False)
    values /= np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = -RATE * math.sqrt(ROWS / COLUMNS) * (left * values) @ right
    why = "its quintic of the singular values, five times"
    return compare("muon_step_difference", np.asarray(step.weight.array), expected, why)


def flatten(weights):
    """The values of all weights in the order of their names, as one vector."""
    import numpy as np

    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def compare(name, values, expected, why):
    """The check that arrays agree, by the largest difference as a part of the largest value."""
    import numpy as np

    difference = float(np.abs(values - expected).max() / np.abs(expected).max())
    return Check(name=name, value=difference, expected=0.0, tolerance=1e-5, why=why)

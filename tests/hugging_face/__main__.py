"""Do checkpoints of Hugging Face's transformers give the same logits in our models, and ours in theirs?

Four toy checkpoints of random weights are made on the spot, with logits, in an environment of their own. Each is loaded
here, layers in a list and scanned, and its logits are compared; then the weights are written again and compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file  # type: ignore[import-not-found,unused-ignore]

from nightjar_models.architectures.hugging_face import load_tensors, save_tensors
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override
from nightjar_models.training.tasks import find_task
from tests.bench.gate.rivals import make_environment

HERE = Path(__file__).resolve().parent
PLACE = HERE.parents[1] / ".nox" / "hugging-face-apart"
MODELS = {"gpt_tiny": "GPT-2", "llama_tiny": "Llama", "t5_tiny": "T5 1.1", "vit_tiny": "ViT"}
TOLERANCE = 5e-5  # of the largest logit: float32, sums in another order


def compare(preset: str, scanned: bool, folder: Path) -> tuple[float, bool]:
    """The largest difference of a logit, as a share of the largest one, and whether the weights come back equal."""
    config = override(find_preset(preset)(), [f"compute.scan_layers={str(scanned).lower()}"])
    model = find_task(config).build(nnx.Rngs(jax.random.key(1)))
    model = nnx.view(model, raise_if_not_found=False, deterministic=True)
    tensors = load_file(folder / f"{preset}.safetensors")
    load_tensors(model, tensors)
    example = np.load(folder / f"{preset}.npz")
    ours = np.asarray(model(*(example[name] for name in example.files if name != "logits")))
    back = folder / "back.safetensors"
    save_file(save_tensors(model), back)
    return float(np.abs(ours - example["logits"]).max() / np.abs(example["logits"]).max()), is_equal(
        load_file(back), tensors
    )


def is_equal(back: dict[str, Any], tensors: dict[str, Any]) -> bool:
    """Whether all weights are the same; of ViT all but the class token, which it has not."""
    unused = {"vit.embeddings.cls_token"}
    position = "vit.embeddings.position_embeddings"
    same = all(
        np.array_equal(back[name][:, 1:], tensor[:, 1:]) if name == position else np.array_equal(back[name], tensor)
        for name, tensor in tensors.items()
        if name not in unused
    )
    return same and set(back) | unused == set(tensors) | unused


def main() -> int:
    """Prints a line for each model; 1 where one differs."""
    sizes = {preset: asdict(find_preset(preset)().model) for preset in MODELS}
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = make_environment(HERE / "apart.txt", PLACE)
        subprocess.run([str(python), str(HERE / "reference.py"), json.dumps(sizes), str(folder)], check=True)
        for preset, name in MODELS.items():
            for scanned in (False, True):
                difference, equal = compare(preset, scanned, folder)
                good = difference <= TOLERANCE and equal
                failed += not good
                layers = "scanned layers" if scanned else "a list of layers"
                weights = "weights come back equal" if equal else "WEIGHTS DIFFER when written again"
                print(f"{name}, {layers}: logits differ by {difference:.1e} (at most {TOLERANCE:g}); {weights}")
    print(f"hugging_face: {2 * len(MODELS) - failed} of {2 * len(MODELS)} equal")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

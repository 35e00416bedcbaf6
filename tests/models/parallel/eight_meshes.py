"""Which losses has each model on each mesh? Run by the tests in a process of its own, which prints one JSON object.

Each run is three steps of a tiny model on random data: the first loss shows the forward pass, the others the gradients.
The first mesh of a model starts from a state that it draws itself, and later ones of the same settings from that of the
single device, laid out anew: to compile the drawing of the parameters takes as long as the step.
"""

import json
import sys
from collections import Counter
from typing import Any
from unittest import mock

import jax
import numpy as np

from nightjar_models.aot.compile_warnings import find_repeated
from nightjar_models.architectures import stack
from nightjar_models.data.noised import spell
from nightjar_models.errors import InputError
from nightjar_models.measuring.facts import read_facts
from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.parallel.mesh import parse_mesh
from nightjar_models.parallel.sharding import make_mesh, put_batch, use_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import TrainConfig, override
from nightjar_models.program.kernels import tally_messages
from nightjar_models.program.module import read_module
from nightjar_models.training.idioms import make_program
from nightjar_models.training.step import Program
from nightjar_models.training.tasks import find_task
from tests.garbage import collect_seldom

BATCH, STEPS, DRAWN = 16, 3, 2  # the single device and one mesh draw their states
TINY = ["model.width=16", "model.feed_forward=32", "model.heads=2", f"batch_size={BATCH}"]
ROUTING = ["model.routing_length=16", "model.capacity=4"]  # every token finds a place
SIZES = {
    "gpt_tiny": [*TINY, "model.length=16", "model.layers=2"],
    "llama_tiny": [*TINY, "model.length=16", "model.layers=2", "model.groups=2"],
    "vit_tiny": [*TINY, "model.layers=2", "model.dropout=0"],
    "moe_tiny": [*TINY, "model.length=16", "model.layers=2", "model.groups=2", "model.experts=4", *ROUTING],
    "t5_tiny": [*TINY, "model.length=8", "model.target_length=8", "model.layers=2", "model.head_width=8"],
    "diffusion_tiny": [
        "model.width=8",
        "model.levels=1",
        "model.heads=2",
        "model.text_width=8",
        f"batch_size={BATCH}",
        "accumulate_steps=1",
    ],
    "vae_tiny": ["model.feed_forward=16", "model.latent=4", f"batch_size={BATCH}"],
}


def tiny(preset: str, *settings: str) -> TrainConfig:
    """The preset at its smallest, with a learning rate that moves it within three steps."""
    return override(find_preset(preset)(), [*SIZES[preset], "warmup_steps=1", *settings])


def make_batch(config: TrainConfig) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    model: Any = config.model
    if config.workload.startswith(("vit", "vae", "diffusion")):
        images = rng.normal(size=(BATCH, model.image, model.image)).astype(np.float32)
        label = rng.integers(0, 10, BATCH, dtype=np.int32)
        keyed = {"key": rng.integers(0, 2**32, (BATCH, 2), dtype=np.uint32)}
        named = {"text": spell(model.text_length)[label]} if config.workload.startswith("diffusion") else {}
        return {"image": images, "label": label, **({} if config.workload.startswith("vit") else keyed), **named}
    if config.workload.startswith("t5"):
        lengths = {"source": model.length, "target": model.target_length}
        return {
            name: rng.integers(1, model.vocabulary, (BATCH, size), dtype=np.int32) for name, size in lengths.items()
        }
    return {"tokens": rng.integers(0, model.vocabulary, (BATCH, model.length + 1), dtype=np.int32)}


STATES: dict[tuple[str, ...], Any] = {}
STARTS: Counter[tuple[str, ...]] = Counter()


def start(program: Program, model: tuple[str, ...]) -> Any:
    """The first state of a model, drawn on this mesh or read from an earlier run."""
    STARTS[model] += 1
    if STARTS[model] > DRAWN:
        return program.load(jax.device_put(STATES[model], program.layout))
    state = program.initialize(0)
    STATES.setdefault(model, jax.device_get(program.save(state)))
    return state


def forgotten(preset: str, mesh: str, *settings: str) -> dict[str, Any]:
    """The same, where scanned layers do not say that the examples stay split."""
    with mock.patch.object(stack, "keep_batch_split", lambda x: x):
        return run(preset, mesh, *settings)


def run(preset: str, mesh: str, *settings: str) -> dict[str, Any]:
    """The losses of three steps, and the facts and messages of one; or what does not fit."""
    if settings[:1] == ("forgotten",):
        return forgotten(preset, mesh, *settings[1:])
    config = tiny(preset, *settings)
    try:
        program = make_program(config, find_task(config), make_mesh(parse_mesh(mesh)))
        batch = put_batch(make_batch(config), program.batch)
        lowered = program.lower(batch)
        compiled = lowered.compile()
        state = start(program, (preset, *settings))
        if preset == "diffusion_tiny" and mesh != "dp1":
            # Its evaluation was seen to gather every text on every device, and no step was.
            program.evaluate(state, [make_batch(config)])
    except InputError as error:
        return {"error": str(error)}
    step, losses = program.bind(compiled), []
    for _ in range(STEPS):
        with use_mesh(program.mesh):
            state, loss = step(state, batch)
        losses.append(float(loss))
    facts = read_facts("train_step", compiled)
    executable: Any = compiled.runtime_executable()
    (module,) = (parse_module(one.as_serialized_hlo_module_proto()) for one in executable.hlo_modules())
    devices = parse_mesh(mesh).size
    packed = read_module(pack_module(module))
    messages = tally_messages(packed, devices)
    return {
        "losses": losses,
        "facts": facts,
        "messages": {kind: work.bytes for kind, work in messages.items()},
        "repeated": find_repeated(lowered, packed, devices),
        "parameter_bytes": 4 * program.parameter_count,
    }


if __name__ == "__main__":
    collect_seldom()
    print(json.dumps({" ".join(case): run(*case) for case in json.load(sys.stdin)}))

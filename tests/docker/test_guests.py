"""What the images of others' programs are for: each runs what the nightly runs of it, with the versions of its lock."""

import json
import tomllib

import pytest
from docker.client import DockerClient
from packaging.utils import canonicalize_name

from nightjar_ci.images.tree import Image
from tests.docker.conftest import CHECKOUT, Runner, find_flavor, list_tags
from tests.docker.test_jax import LIST_INSTALLED, locked_versions

pytestmark = pytest.mark.docker

# image -> its lock
IMAGES = {
    "equinox": "ecosystem/diffrax",
    "levanter": "ecosystem/levanter",
    "maxtext": "trainers/maxtext",
    "tunix": "trainers/tunix",
}
CELLS = {"equinox": "diffrax", "levanter": "levanter"}  # of `nightjar-models smoke`
TUNIX = """
import jax.numpy as jnp, numpy as np, optax
from flax import nnx
from tunix.sft import peft_trainer

def loss(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()

model = nnx.Sequential(nnx.Embed(8, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, 8, rngs=nnx.Rngs(1)))
tokens = np.tile(np.arange(8), (4, 2))
before = float(loss(model, jnp.asarray(tokens)))
config = peft_trainer.TrainingConfig(eval_every_n_steps=1000, max_steps=60)
trainer = peft_trainer.PeftTrainer(model, optax.adam(3e-2), config).with_loss_fn(loss)
trainer = trainer.with_gen_model_input_fn(lambda batch: {"tokens": batch.input_tokens})
trainer.train([peft_trainer.TrainingInput(tokens, np.ones_like(tokens))] * 60)
print(before, float(loss(model, jnp.asarray(tokens))))
"""
CPU = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "DECOUPLE_GCLOUD": "TRUE"}


def test_a_guest_is_what_its_lock_says_with_the_jax_of_the_jax_image(run: Runner, image: Image) -> None:
    printed = json.loads(run("python", "-c", LIST_INSTALLED))
    installed = {canonicalize_name(name): version for name, version in printed["installed"].items()}
    flavor = find_flavor(image)
    expected: dict[str, str] = {}
    for lock in ("base", IMAGES[image.name]):
        expected |= locked_versions(lock, printed["python"], printed["machine"])
    if flavor != "cpu":
        jax = locked_versions(f"jax-{flavor}", printed["python"], printed["machine"])
        expected |= {name: version for name, version in jax.items() if name.startswith(("nvidia-", "jax-cuda"))}
    assert installed == expected


def test_jax_and_jaxlib_of_the_jax_image_are_pulled_once(client: DockerClient, run: Runner, image: Image) -> None:
    """The last three layers of both are jaxlib, what is pure Python, and JAX; the one between is each image's own."""
    jax = f"nightjar/jax:{image.tag.split(':')[1]}"
    if jax not in list_tags(client):
        pytest.skip(f"{jax} is not built")
    guests, jaxs = (client.images.get(tag).attrs["RootFS"]["Layers"] for tag in (image.tag, jax))
    assert guests[-1] == jaxs[-1]
    assert guests[-3] == jaxs[-3]


def test_the_cell_of_the_nightly_is_right_in_the_image(run: Runner, image: Image) -> None:
    if image.name not in CELLS:
        pytest.skip("its nightly is a training")
    mounts = {str(CHECKOUT / "models"): {"bind": "/models", "mode": "ro"}}
    environment = {**CPU, "PYTHONPATH": "/models"}
    command = f"python -m nightjar_models smoke {CELLS[image.name]} --out /tmp/out"
    script = f"{command} && cat /tmp/out/result.json"
    printed = run("sh", "-c", script, environment=environment, volumes=mounts, user="1000:1000")
    assert '"schema"' in printed


@pytest.mark.slow
def test_maxtext_trains_as_the_nightly_has_it(run: Runner, image: Image) -> None:
    if image.name != "maxtext":
        pytest.skip("the training is MaxText's")
    matrix = tomllib.loads((CHECKOUT / "ci/matrix/nightly-trainers.toml").read_text())
    command = next(job["command"] for job in matrix["job"] if job["name"] == "maxtext-train-cpu")[-1]
    version = run("python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    script = command.replace("python3.12", f"python{version}").replace("{out}", "/tmp").replace("steps=12", "steps=3")
    printed = run("sh", "-c", f"{script} 2>&1", environment=CPU, user="1000:1000")
    assert "completed step: 2" in printed


def test_tunix_trains_a_small_model(run: Runner, image: Image) -> None:
    if image.name != "tunix":
        pytest.skip("the program is Tunix's")
    before, after = map(float, run("python", "-c", TUNIX, environment=CPU, user="1000:1000").split()[-2:])
    assert after < 0.1 < before  # each token says the next

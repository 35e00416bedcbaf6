"""DALI cell: one pipeline feeds a Flax model, for training and for prediction, over all devices.

The operators of an ImageNet recipe: read, decode a random crop, resize, flip, normalize. Without the random ones its
pixels are those that Pillow decodes and resizes; with them each file comes once an epoch, and a small model learns to
tell two photographs apart. The iterator's `sharding=` needs CUDA: on CPUs JAX lays out the batches.

Source: docs.nvidia.com/deeplearning/dali, "Training neural network with DALI and Flax".
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding
from nightjar_models.measuring.result import Sample

FILES, BATCH, SIDE, EPOCHS = 128, 16, 64, 3
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]  # of ImageNet's red, green and blue


def run() -> Finding:
    """Runs the cell."""
    import tempfile
    import time
    from pathlib import Path

    import jax
    import numpy as np
    import optax
    from flax import nnx
    from nvidia.dali import fn, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.jax import data_iterator
    from PIL import Image

    from nightjar_models.data.jpegs import list_jpegs, write_jpegs

    on_gpu = jax.default_backend() == "gpu"
    devices = jax.sharding.Mesh(jax.devices(), ("data",))
    sharding = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("data"))

    def open_batches(paths, training):
        @data_iterator(
            output_map=["image", "number"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.DROP,
            sharding=sharding if on_gpu else None,
        )
        def pipeline(shard_id=0, num_shards=1):
            encoded, number = fn.readers.file(
                files=[str(path) for path in paths],
                labels=list(range(len(paths))),
                random_shuffle=training,
                shard_id=shard_id,
                num_shards=num_shards,
                name="reader",
            )
            device, mirror = "mixed" if on_gpu else "cpu", 0
            if training:
                image = fn.decoders.image_random_crop(encoded, device=device, random_area=[0.5, 1.0])
                mirror = fn.random.coin_flip()
            else:
                image = fn.decoders.image(encoded, device=device)
            image = fn.resize(image, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True)
            image = fn.crop_mirror_normalize(image, mirror=mirror, mean=MEAN, std=STD, output_layout="HWC")
            return image, number.gpu() if on_gpu else number

        if on_gpu:
            yield from pipeline(batch_size=BATCH, num_threads=2)
            return
        for batch in pipeline(batch_size=BATCH, num_threads=2, device_id=None):
            yield jax.device_put(batch, sharding)

    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Conv(3, 16, (8, 8), strides=8, rngs=rngs), nnx.relu, lambda x: x.mean((1, 2)), nnx.Linear(16, 2, rngs=rngs)
    )
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, image, label):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(image), label).mean()

        optimizer.update(model, nnx.grad(loss)(model))

    with tempfile.TemporaryDirectory() as name:
        write_jpegs(Path(name), FILES)
        paths, labels = list_jpegs(Path(name))
        classes = np.asarray(labels)
        begin = time.perf_counter()
        epochs = [list(open_batches(paths, training=True)) for _ in range(EPOCHS)]
        seconds = (time.perf_counter() - begin) / EPOCHS
        for batch in (batch for epoch in epochs for batch in epoch):
            train_step(model, optimizer, batch["image"], classes[np.asarray(batch["number"]).ravel()])
        predicted = list(open_batches(paths, training=False))
        squares = [np.asarray(Image.open(path).resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for path in paths]
    images = np.concatenate([np.asarray(batch["image"]) for batch in predicted])
    answers = np.concatenate([np.asarray(model(batch["image"])).argmax(-1) for batch in predicted])
    numbers = np.concatenate([np.asarray(batch["number"]).ravel() for batch in epochs[0]])
    drawn = dict(zip(numbers, np.concatenate([np.asarray(batch["image"]) for batch in epochs[0]]), strict=True))
    return Finding(
        checks=[
            Check(
                name="difference_from_pillow",
                value=float(np.abs(images * STD + MEAN - np.stack(squares)).mean()),
                expected=0.0,
                tolerance=1.0,
                why="mean over all pixels of the prediction, in levels of 256; the same triangular filter",
            ),
            Check(
                name="files_of_an_epoch",
                value=len(drawn),
                expected=FILES,
                tolerance=0,
                why="each comes once, in any order",
            ),
            Check(
                name="files_that_are_not_changed",
                value=sum(np.abs(drawn[number] - images[number]).mean() < 0.01 for number in drawn),
                expected=0,
                tolerance=0,
                why="a random crop is another picture than the whole",
            ),
            Check(
                name="sharded",
                value=sum(batch["image"].sharding.is_equivalent_to(sharding, 4) for batch in epochs[0] + predicted),
                expected=2 * FILES // BATCH,
                tolerance=0,
                why="every batch lies over the mesh's data axis",
            ),
            Check(
                name="accuracy",
                value=float((answers == classes).mean()),
                expected=1.0,
                tolerance=0.05,
                why="the two photographs differ in colour",
            ),
        ],
        samples=[
            Sample(name="step_time", unit="s", better="lower", values=[seconds * BATCH / FILES]),
            Sample(name="throughput", unit="images/s", better="higher", values=[FILES / seconds]),
        ],
    )

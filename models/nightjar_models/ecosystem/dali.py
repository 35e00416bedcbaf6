"""DALI cell: its JAX iterator yields every JPEG once per epoch, with the pixels that Pillow decodes and resizes.

On the CPU (`device_id=None`): files of two photographs' crops, decoded and resized, batches laid over all devices.
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding
from nightjar_models.measuring.result import Sample

FILES, BATCH, SIDE = 128, 16, 128


def run() -> Finding:
    """Runs the cell."""
    import tempfile
    import time
    from pathlib import Path

    import jax
    import numpy as np
    from PIL import Image

    from nightjar_models.data.dali import dali_batches
    from nightjar_models.data.jpegs import list_jpegs, write_jpegs

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_jpegs(folder, FILES)
        paths, labels = list_jpegs(folder)
        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))  # type: ignore[no-untyped-call]

        def epoch(shuffle: bool) -> list[dict[str, jax.Array]]:
            return list(
                dali_batches(folder, batch_size=BATCH, side=SIDE, shuffle=shuffle, sharding=sharding, threads=2)
            )

        ordered = epoch(shuffle=False)
        images = np.concatenate([np.asarray(batch["image"]) for batch in ordered])
        found = np.concatenate([np.asarray(batch["label"]) for batch in ordered])
        expected = np.stack(
            [np.asarray(Image.open(path).resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for path in paths]
        )
        begin = time.perf_counter()
        shuffled = epoch(shuffle=True)
        seconds = time.perf_counter() - begin
        again = np.concatenate([np.asarray(batch["image"]) for batch in shuffled])
    keys = {image.tobytes() for image in images}
    return Finding(
        checks=[
            Check(
                name="difference_from_pillow",
                value=float(np.abs(images.astype(np.int32) - expected).mean()),
                expected=0.0,
                tolerance=1.0,
                why="mean over all pixels, in levels of 256; the same triangular filter",
            ),
            Check(
                name="wrong_labels",
                value=int((found != np.asarray(labels)).sum()),
                expected=0,
                tolerance=0,
                why="a class is a folder",
            ),
            Check(
                name="files_of_an_epoch",
                value=len(keys & {image.tobytes() for image in again}),
                expected=FILES,
                tolerance=0,
                why="each comes once, in any order",
            ),
            Check(
                name="sharded",
                value=sum(batch["image"].sharding.is_equivalent_to(sharding, 4) for batch in shuffled),
                expected=FILES // BATCH,
                tolerance=0,
                why="every batch lies over the mesh's data axis",
            ),
        ],
        samples=[
            Sample(name="step_time", unit="s", better="lower", values=[seconds / len(shuffled)]),
            Sample(name="throughput", unit="images/s", better="higher", values=[FILES / seconds]),
        ],
    )

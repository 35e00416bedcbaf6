"""How many JPEGs a second reach JAX? Grain and DALI as this package uses them, beside PyTorch's DataLoader.

All decode the same files to the same size by the same filter (triangular, antialiased): otherwise a loader wins by
doing less. Checked here: the batches of Grain and DALI differ by less than a level of 256 on average.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import numpy as np
import torch

from nightjar_models.data.dali import dali_batches
from nightjar_models.data.jpegs import lay_out, list_jpegs, write_jpegs
from nightjar_models.data.photographs import decode_jpeg, grain_batches
from tests.bench.table import Row

FILES, BATCH, SIDE, ROUNDS = 256, 32, 224, 5


class Files(torch.utils.data.Dataset[tuple[np.ndarray, int]]):  # type: ignore[misc, unused-ignore]
    """The same decoding for PyTorch."""

    def __init__(self, folder: Path) -> None:
        self.paths, self.labels = list_jpegs(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return decode_jpeg(self.paths[index], SIDE).copy(), self.labels[index]  # PyTorch wants memory of its own


def torch_batches(loader: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[dict[str, jax.Array]]:
    """PyTorch's batches, handed to JAX as the others' are."""
    for images, labels in loader:
        yield {"image": lay_out(images.numpy(), None), "label": lay_out(labels.numpy(), None)}


def list_goals() -> list[str]:
    """The names of this part's goals."""
    faster = [f"Grain's images/s over {name}" for name in ("DALI", "torch DataLoader")]
    return ["pixels: mean difference of DALI and Grain", *faster]


def measure() -> list[Row]:
    """Each loader, epoch by epoch in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_jpegs(folder, FILES)
        torch_loader = torch.utils.data.DataLoader(
            Files(folder),
            BATCH,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context="forkserver",
        )
        epochs: dict[str, Callable[[], int]] = {
            "Grain": lambda: sum(len(b["label"]) for b in grain_batches(folder, batch_size=BATCH, side=SIDE)),
            "DALI": lambda: sum(len(b["label"]) for b in dali_batches(folder, batch_size=BATCH, side=SIDE)),
            "torch DataLoader": lambda: sum(len(b["label"]) for b in torch_batches(torch_loader)),
        }
        difference = compare(folder)
        times: dict[str, list[float]] = {name: [] for name in epochs}
        for _ in range(ROUNDS + 1):
            for name, epoch in epochs.items():
                begin = time.perf_counter()
                assert epoch() == FILES
                times[name].append(time.perf_counter() - begin)
    grain = times["Grain"][1:]
    rows = [Row(name="pixels: mean difference of DALI and Grain", ours=difference, goal=1.0, unit="levels")]
    for name in list(epochs)[1:]:
        ratio = statistics.median(its / ours for its, ours in zip(times[name][1:], grain, strict=True))
        rate = FILES / statistics.median(times[name][1:])
        rows += [
            Row(name=f"Grain's images/s over {name}", ours=ratio, goal=1.0, better="higher", unit="x"),
            Row(
                name="images/s",
                ours=FILES / statistics.median(grain),
                better="higher",
                rival=name,
                rival_value=rate,
            ),
        ]
    return rows


def compare(folder: Path) -> float:
    """The mean difference between the two loaders' pixels."""
    ours, its = (
        np.concatenate(
            [np.asarray(b["image"], np.int32) for b in feed(folder, batch_size=BATCH, side=SIDE, shuffle=False)]
        )
        for feed in (grain_batches, dali_batches)
    )
    return float(np.abs(ours - its).mean())

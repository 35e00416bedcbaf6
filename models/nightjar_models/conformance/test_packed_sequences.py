"""Packed sequences: a decoder computes the same for each in one row and alone.

Grain packs sequences into rows and numbers their segments and positions; attention sees its own segment only, and the
loss leaves out what no sequence fills and the last position of each.

Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination"; google-grain.readthedocs.io,
"Packing".
"""

from __future__ import annotations

from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

ROW, VOCABULARY, WIDTH = 16, 13, 16
LENGTHS = (5, 9, 3, 16, 2, 7, 4, 6, 11, 3)
ROUNDING = 1e-5  # the same sums of float32 numbers in another order

Row = dict[str, Any]


class Decoder(nnx.Module):
    """One block of a causal decoder, as MaxText's take packed rows: segments and positions next to the tokens."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(ROW, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)

    def __call__(self, tokens: Any, positions: Any, segments: Any) -> Any:
        x = self.tokens(tokens) + self.positions(positions)
        own = nnx.make_attention_mask(segments, segments, jnp.equal)
        mask = nnx.combine_masks(nnx.make_causal_mask(tokens), own)
        return self.tokens.attend(x + self.attention(self.norm(x), mask=mask))


def measure(model: Decoder, row: Row) -> tuple[Any, Any]:
    """The negative log likelihood of each next token of a segment, and where there is one."""
    tokens, segments = row["tokens"], row["tokens_segment_ids"]
    logits = model(tokens, row["tokens_positions"], segments)[:, :-1]
    counted = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]), counted


def mean_loss(model: Decoder, row: Row) -> Any:
    losses, counted = measure(model, row)
    return (losses * counted).sum() / counted.sum()


@pytest.fixture(scope="module")
def sequences() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.integers(0, VOCABULARY, length) for length in LENGTHS]


def pack(sequences: list[Any], kind: str) -> Row:
    """All rows of Grain's packed dataset, one after the other."""
    source = grain.MapDataset.source([{"tokens": sequence} for sequence in sequences]).to_iter_dataset()
    experimental = grain.experimental
    if kind == "first fit":
        packed = experimental.FirstFitPackIterDataset(source, length_struct={"tokens": ROW}, num_packing_bins=3)
    else:
        packed = experimental.ConcatThenSplitIterDataset(
            source, length_struct={"tokens": ROW}, bos_handling=experimental.BOSHandling.DO_NOTHING
        )
    return jax.tree.map(lambda *rows: np.stack(rows), *packed)


def separate(sequences: list[Any]) -> Row:
    """Each sequence in a row of its own, filled up with zeros."""
    rows = {name: np.zeros((len(sequences), ROW), int) for name in ("tokens", "tokens_segment_ids", "tokens_positions")}
    for number, sequence in enumerate(sequences):
        filled = slice(None, len(sequence))
        rows["tokens"][number, filled] = sequence
        rows["tokens_segment_ids"][number, filled] = 1
        rows["tokens_positions"][number, filled] = np.arange(len(sequence))
    return rows


def test_every_sequence_is_packed_once(sequences: list[Any]) -> None:
    packed = pack(sequences, "first fit")
    assert len(packed["tokens"]) < len(sequences)
    segments = []
    for tokens, numbers, positions in zip(
        packed["tokens"], packed["tokens_segment_ids"], packed["tokens_positions"], strict=True
    ):
        for number in range(1, numbers.max() + 1):
            segments.append(tuple(tokens[numbers == number].tolist()))
            assert positions[numbers == number].tolist() == list(range(len(segments[-1])))
    assert sorted(segments) == sorted(tuple(sequence.tolist()) for sequence in sequences)


def test_packed_losses_and_gradients_are_those_of_separate_sequences(sequences: list[Any]) -> None:
    model = Decoder(nnx.Rngs(0))
    packed, alone = (
        nnx.jit(nnx.value_and_grad(mean_loss))(model, rows)
        for rows in (pack(sequences, "first fit"), separate(sequences))
    )
    assert float(packed[0]) == pytest.approx(float(alone[0]), rel=ROUNDING)
    for mine, theirs in zip(*(jax.tree.leaves(gradient) for _, gradient in (packed, alone)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=ROUNDING, atol=ROUNDING)


def test_no_segment_sees_another(sequences: list[Any]) -> None:
    model, packed = Decoder(nnx.Rngs(0)), pack(sequences, "first fit")
    fullest = packed["tokens_segment_ids"].max(axis=1).argmax()
    row = {name: array[[fullest]] for name, array in packed.items()}
    losses, counted = measure(model, row)
    first = row["tokens_segment_ids"][0] == 1
    row["tokens"][0, first] = (row["tokens"][0, first] + 1) % VOCABULARY
    changed, _ = measure(model, row)
    others = np.asarray(counted[0]) & ~first[1:]
    assert others.any()
    np.testing.assert_array_equal(np.asarray(changed[0])[others], np.asarray(losses[0])[others])
    assert not np.array_equal(np.asarray(changed[0])[first[1:]], np.asarray(losses[0])[first[1:]])


def test_concatenated_and_split_rows_are_full(sequences: list[Any]) -> None:
    rows = pack(sequences, "concatenate")
    full = rows["tokens_segment_ids"][: sum(LENGTHS) // ROW]
    assert (full > 0).all()
    tokens = rows["tokens"][rows["tokens_segment_ids"] > 0]
    assert sorted(tokens.tolist()) == sorted(np.concatenate(sequences).tolist())

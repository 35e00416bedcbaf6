"""Genomics cell: a convolution over DNA learns a promoter's motif from labels alone, and its filter shows it.

Half of the sequences hold the CCAAT box on one of the two strands. The network scans both strands with the same
filters, as gene regulation does not depend on the strand, and takes the best place. What it learned is in a filter.

Source: Alipanahi et al. 2015, "Predicting the sequence specificities of DNA- and RNA-binding proteins by deep
learning".
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

LETTERS, MOTIF = "ACGT", "GGCCAATC"  # the complement of letter i is letter 3 - i
PART = 6  # letters: a filter may be shifted by one or two
LENGTH, EXAMPLES, STEPS, FILTERS = 60, 1024, 300, 8


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    rng = np.random.default_rng(0)
    motif = np.array([LETTERS.index(letter) for letter in MOTIF])
    strands = motif, (3 - motif)[::-1]

    def draw(count):
        letters = rng.integers(0, 4, (count, LENGTH))
        labels = np.arange(count) % 2
        for row in np.flatnonzero(labels):
            start = rng.integers(0, LENGTH - len(MOTIF))
            letters[row, start : start + len(MOTIF)] = strands[rng.integers(2)]
        return jax.nn.one_hot(letters, 4), jnp.asarray(labels)

    class Scanner(nnx.Module):
        def __init__(self, rngs):
            self.convolution = nnx.Conv(4, FILTERS, kernel_size=(len(MOTIF),), padding="VALID", rngs=rngs)
            self.decide = nnx.Linear(FILTERS, 1, rngs=rngs)

        def __call__(self, x):
            both = jnp.concatenate([self.convolution(x), self.convolution(x[:, ::-1, ::-1])], axis=1)
            return self.decide(nnx.relu(both).max(axis=1))[:, 0]

    def loss(model, x, labels):
        return optax.sigmoid_binary_cross_entropy(model(x), labels).mean()

    @nnx.jit
    def train(model, optimizer, x, labels):
        value, gradients = nnx.value_and_grad(loss)(model, x, labels)
        optimizer.update(model, gradients)
        return value

    model = Scanner(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-2), wrt=nnx.Param)
    x, labels = draw(EXAMPLES)
    samples = time_calls(lambda: train(model, optimizer, x, labels), items=EXAMPLES, unit="sequences/s", calls=STEPS)
    unseen, truth = draw(EXAMPLES)
    scores = model(unseen)
    kernels = np.asarray(model.convolution.kernel[...]) * np.asarray(model.decide.kernel[...])[:, 0]
    best = kernels[:, :, np.ptp(kernels, axis=1).sum(axis=0).argmax()].argmax(axis=1)
    sequences = ["".join(LETTERS[i] for i in strand) for strand in (best, (3 - best)[::-1])]
    parts = [MOTIF[start : start + PART] for start in range(len(MOTIF) - PART + 1)]
    shown = any(part in strand for part in parts for strand in sequences)
    mirrored = jnp.abs(model(unseen[:, ::-1, ::-1]) - scores).max()
    by_chance = 2 * (LENGTH - len(MOTIF) + 1) / 4 ** len(MOTIF)  # of sequences without a planted motif have one
    return Finding(
        checks=[
            Check(name="motif", value=shown, expected=1, tolerance=0, why=f"{PART} letters of it in {sequences}"),
            Check(
                name="accuracy",
                value=float(((scores > 0) == truth).mean()),
                expected=1 - by_chance / 2,
                tolerance=0.05,
                why="all but motifs by chance",
            ),
            Check(name="strands", value=float(mirrored), expected=0, tolerance=1e-4, why="both strands are alike"),
        ],
        samples=samples,
    )

"""Efficiency of kernels: the fraction of the peak that bounds them, by kind of kernel, measured on a device.

In: a kind (`kernels.kernel_kind`). Out: a fraction from 0 to 1.

Measured in November 2026 on an NVIDIA H100 80GB HBM3 (driver 580.159.04, jax 0.11.2, cuBLAS 13.1, cuDNN 9.19): the time
of every kernel in two steps of `gpt3_126m`, in CUDA graphs, with its roofline. The comments give the
fraction on `llama_125m`, which was not fitted. The other targets are assumed to reach the same fractions.
"""

from __future__ import annotations

from types import MappingProxyType

ATTENTION = MappingProxyType(
    {
        "cuDNN attention": 0.40,  # 12.55 ms for 5.00, heads of 64; llama_125m 0.39
        "cuDNN attention backward": 0.31,  # 20.28 ms for 6.25; llama_125m 0.31
    }
)
# Matrix products of any library: a device chooses between cuBLASLt (0.81) and Triton (0.71, if it was
# chosen), and a compiler without one cannot: 61.4 ms for 49.1; llama_125m 0.78. Convolutions, FP8 and Pallas were not
# measured: assumed.
PRODUCTS = 0.80
MEMORY = 0.80  # 73.4 ms for 58.9 in fusions of more than 50 MB; llama_125m 0.88
# A scatter adds to 16-bit floats by compare-and-swap, which serialises updates of the same row, such as the rows of
# an embedding's most frequent tokens: 65,536 rows of 768 from a text took 54.6 ms; llama_125m 0.79 us a row, and, with
# rows of 4,096, gpt3_5b 0.34 to 0.49. It depends on the text: rows that are drawn evenly take less than a twentieth.
ADDED_ROW_S = 8.3e-7


def product_efficiency(kind: str) -> float:
    """The fraction of the matrix units' peak that a kind of kernel reaches.

    >>> product_efficiency("cuBLASLt"), product_efficiency("cuDNN attention")
    (0.8, 0.4)
    """
    return ATTENTION.get(kind, PRODUCTS)

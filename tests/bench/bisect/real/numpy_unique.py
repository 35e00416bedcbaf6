"""The inverse of the unique rows of a matrix rebuilds the matrix (numpy/numpy#26738)."""

import numpy as np

points = np.array([[3, 1], [1, 2], [3, 1]])
rows, inverse = np.unique(points, axis=0, return_inverse=True)
assert np.array_equal(rows[inverse], points)

"""Conformance: the parts of JAX and its libraries, against an independent reference; a pytest file per library.

A reference is the published formula in NumPy or SciPy, a property (an inverse, an adjoint, a finite difference), or a
value that the documentation states. Nothing here is computed by the library that is tested.
"""

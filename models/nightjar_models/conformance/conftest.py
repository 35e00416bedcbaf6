"""Eight virtual devices for all tests of the room: meshes need several, and JAX fixes their number at its start."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AxisType, Mesh

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))

"""Eight virtual devices for all tests of the room: meshes need several, and JAX fixes their number at its start."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 8)

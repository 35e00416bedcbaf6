"""MuJoCo MJX cell: the humanoid falls with g and moves as in MuJoCo's own C engine.

Two truths: above the ground its centre of mass follows h - g t^2 / 2 (semi-implicit Euler: g t (t + dt) / 2), and after
some steps in contact its joints stand where the C engine puts them. A batch of humanoids, half of them in the air,
moves as one alone does. The samples hold the steps per second of one and of each batch. Most of the cell's time is
XLA's compiling of a step: with little optimization 5 s in place of 8 for a program that is about as fast (jax 0.10.2,
two cores).
"""

from __future__ import annotations

import dataclasses
from functools import partial

from nightjar_models.ecosystem.cell import Check, Finding, compile_quickly, time_calls

FALL_STEPS, CONTACT_STEPS = 40, 20
BATCHES = (64, 1024)  # humanoids at once; each size is compiled by itself, for four times as long as one humanoid
GPU_BATCHES = (4096,)  # in addition
HEIGHT = 3.0  # metres above where it stands, so that nothing is touched during the fall


@compile_quickly()
def run() -> Finding:
    """Runs the cell."""
    from importlib.resources import files

    import jax
    import jax.numpy as jnp
    import mujoco
    import numpy as np
    from mujoco import mjx

    path = files("mujoco.mjx") / "test_data" / "humanoid" / "humanoid.xml"
    model = mujoco.MjModel.from_xml_path(str(path))
    on_device = mjx.put_model(model)

    def start(height: float) -> mujoco.MjData:
        state = mujoco.MjData(model)
        state.qpos[2] += height
        mujoco.mj_forward(model, state)
        return state

    step = jax.jit(mjx.step)
    step_batch = jax.jit(jax.vmap(mjx.step, in_axes=(None, 0)))
    high, low = start(HEIGHT), start(0.0)
    falling, standing = mjx.put_data(model, high), mjx.put_data(model, low)
    samples = time_calls(lambda: step(on_device, standing), items=1, unit="env steps/s", calls=100)
    pair = jax.tree.map(lambda *values: jnp.stack(values), standing, falling)
    begin_height = float(high.subtree_com[0, 2])
    for _ in range(CONTACT_STEPS):
        standing = step(on_device, standing)
        mujoco.mj_step(model, low)
    for number in range(FALL_STEPS + 1):  # subtree_com is that of the state which a step began with
        if number == CONTACT_STEPS:
            alone = jnp.stack([standing.qpos, falling.qpos])
        falling = step(on_device, falling)
    sizes = [*BATCHES]
    if jax.default_backend() == "gpu":
        sizes += GPU_BATCHES
    checks = []
    for size in sizes:
        batch = jax.tree.map(partial(repeat, times=size // 2), pair)
        timed = time_calls(partial(step_batch, on_device, batch), items=size, unit="env steps/s", calls=5)
        samples += [dataclasses.replace(sample, name=f"{sample.name}_of_{size}") for sample in timed]
        for _ in range(CONTACT_STEPS):
            batch = step_batch(on_device, batch)
        checks.append(
            Check(
                name=f"difference_in_a_batch_of_{size}",
                value=float(jnp.abs(batch.qpos.reshape(-1, *alone.shape) - alone).max()),
                expected=0.0,
                tolerance=1e-4,
                why=f"joint positions after {CONTACT_STEPS} steps, less the steps of one alone",
            )
        )
    time_s = FALL_STEPS * model.opt.timestep
    expected = begin_height + model.opt.gravity[2] * time_s * (time_s + model.opt.timestep) / 2
    return Finding(
        checks=[
            Check(
                name="height_after_fall",
                value=float(falling.subtree_com[0, 2]),
                expected=expected,
                tolerance=1e-4,
                why=f"metres: free fall by g for {time_s:g} s",
            ),
            Check(
                name="difference_from_c",
                value=float(np.abs(np.asarray(standing.qpos) - low.qpos).max()),
                expected=0.0,
                tolerance=1e-4,
                why=f"joint positions after {CONTACT_STEPS} steps on the ground, float32 against float64",
            ),
            *checks,
        ],
        samples=samples,
    )


def repeat(pair, times):
    """A batch in which a pair stands again and again."""
    import jax.numpy as jnp

    return jnp.concatenate([pair] * times)

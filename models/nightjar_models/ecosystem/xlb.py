"""XLB cell: a Taylor-Green vortex decays at the rate of its viscosity, and its mass is conserved.

The vortex is an exact solution of the incompressible Navier-Stokes equations: its kinetic energy falls by
exp(-4 nu k^2 t), with nu = (1 / omega - 1 / 2) / 3 in lattice units. It grows with the first velocity squared: its
derivative through the solver is known, too. MLUPS is million lattice updates per second.

A second process splits the lattice over four virtual devices, with XLB's own exchange of what streams over an edge. Its
populations equal one device's.

Source: Taylor and Green 1937, "Mechanism of the production of small eddies from large ones", section 4.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

SIDE, STEPS, DIFFERENTIATED = 128, 200, 20
DEVICES = 4
OMEGA, SPEED = 1.0, 0.02  # Mach 0.03: the compressibility error is of its square


def prepare():
    """The velocity set, the precision, the backend, the grid, a stepper, and the vortex's density and velocity."""
    import jax.numpy as jnp

    with contextlib.redirect_stdout(io.StringIO()):  # it says that there is no GPU; our stdout is the result
        import xlb
        from xlb.grid import grid_factory
        from xlb.operator.macroscopic import Macroscopic
        from xlb.operator.stepper import IncompressibleNavierStokesStepper

        precision, backend = xlb.PrecisionPolicy.FP32FP32, xlb.ComputeBackend.JAX
        velocities = xlb.velocity_set.D2Q9(precision_policy=precision, compute_backend=backend)
        xlb.init(velocity_set=velocities, default_backend=backend, default_precision_policy=precision)
    grid = grid_factory((SIDE, SIDE), compute_backend=backend)
    wave_number = 2 * math.pi / SIDE
    x, y = jnp.meshgrid(*(wave_number * jnp.arange(SIDE),) * 2, indexing="ij")
    velocity = SPEED * jnp.stack([jnp.cos(x) * jnp.sin(y), -jnp.sin(x) * jnp.cos(y)])
    density = 1 - 0.75 * SPEED**2 * (jnp.cos(2 * x) + jnp.cos(2 * y))[None]
    stepper = IncompressibleNavierStokesStepper(grid=grid, boundary_conditions=[])
    measure = Macroscopic(velocity_set=velocities, precision_policy=precision, compute_backend=backend)
    return grid, velocities, stepper, measure, density, velocity


def make_advance(stepper, second, masks):
    """`STEPS` steps as one compiled function of the populations."""
    import jax

    @jax.jit
    def advance(f):
        def step(number, pair):
            now, after = stepper(*pair, *masks, OMEGA, number)
            return after, now

        return jax.lax.fori_loop(0, STEPS, step, (f, second))[0]

    return advance


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp

    _, _, stepper, measure, density, velocity = prepare()
    first, second, *masks = stepper.prepare_fields()
    first = stepper.equilibrium(density, velocity)
    advance = make_advance(stepper, second, masks)
    samples = time_calls(lambda: advance(first), items=SIDE * SIDE * STEPS / 1e6, unit="MLUPS", calls=3)
    (mass, flow), (begin_mass, begin_flow) = measure(advance(first)), measure(first)

    @jax.jit
    @jax.value_and_grad
    def find_energy(scale):
        def step(pair, number):
            now, after = stepper(*pair, *masks, OMEGA, number)
            return (after, now), None

        start = stepper.equilibrium(1 + (density - 1) * scale**2, velocity * scale)
        (last, _), _ = jax.lax.scan(step, (start, second), jnp.arange(DIFFERENTIATED))
        return (measure(last)[1] ** 2).sum()

    energy, slope = find_energy(1.0)
    split = run_on_devices()
    viscosity = (1 / OMEGA - 0.5) / 3
    decay = math.log(float((begin_flow**2).sum() / (flow**2).sum())) / STEPS
    return Finding(
        checks=[
            Check(
                name="decay_rate_ratio",
                value=decay / (4 * viscosity * (2 * math.pi / SIDE) ** 2),
                expected=1.0,
                tolerance=0.01,
                why="kinetic energy falls by 4 nu k^2 a step; the lattice's own error is k^2 / 10",
            ),
            Check(
                name="mass_kept",
                value=float(mass.mean() / begin_mass.mean()),
                expected=1.0,
                tolerance=1e-5,
                why="collision and streaming lose nothing",
            ),
            Check(
                name="gradient_ratio",
                value=float(slope / energy),
                expected=2.0,
                tolerance=0.01,
                why=f"energy after {DIFFERENTIATED} steps is that of the first velocity, squared, times a constant",
            ),
            Check(
                name="devices",
                value=split["devices"],
                expected=DEVICES,
                tolerance=0,
                why="over which the populations are split after all steps",
            ),
            Check(
                name="difference_between_devices",
                value=split["difference"],
                expected=0.0,
                tolerance=1e-6,
                why=f"populations after {STEPS} steps on {DEVICES} devices, less one device's",
            ),
        ],
        samples=samples,
    )


def run_on_devices() -> dict[str, float]:
    """What `compare_devices` says in a process with virtual CPUs: this one has as many devices as the machine."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", f"from {__name__} import compare_devices; compare_devices()"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"on {DEVICES} devices: {done.stderr.strip().splitlines()[-1]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare_devices() -> None:
    """Prints over how many devices the populations are split, and how far they are from one device's."""
    import jax
    import numpy as np
    from xlb.distribute import distribute

    grid, velocities, stepper, _, density, velocity = prepare()
    distributed = prepare()[2]  # another one: XLB compiles the methods of a stepper once
    distributed.stream = distribute(distributed.stream, grid, velocities)
    _, *fields = stepper.prepare_fields()
    fields = [stepper.equilibrium(density, velocity), *fields]
    ends = []
    for used, place in ((stepper, jax.devices()[0]), (distributed, grid.sharding)):
        start, second, *masks = (jax.device_put(field, place) for field in fields)
        ends.append(make_advance(used, second, masks)(start))
    one, split = ends
    difference = float(np.abs(np.asarray(split) - np.asarray(one)).max())
    print(json.dumps({"devices": len(split.sharding.device_set), "difference": difference}))

"""NetKet cell: exact and variational ground states of a short Ising chain."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

SITES, STEPS = 8, 120


def run() -> Finding:
    """Runs the cell."""
    import netket as nk
    import numpy as np

    chain = nk.graph.Chain(SITES, pbc=True)
    space = nk.hilbert.Spin(s=1 / 2, N=SITES)
    hamiltonian = nk.operator.Ising(space, graph=chain, h=1.0)
    # Free fermions at the critical field: E = - sum over k of 2 |sin(k/2)|, k = (2 n + 1) pi / N.
    momenta = (2 * np.arange(SITES) + 1) * np.pi / SITES
    exact = -np.sum(2 * np.abs(np.sin(momenta / 2)))
    lanczos = float(nk.exact.lanczos_ed(hamiltonian)[0])
    state = nk.vqs.FullSumState(space, nk.models.RBM(alpha=1, param_dtype=float), seed=0)
    driver = nk.driver.VMC_SR(hamiltonian, nk.optimizer.Sgd(0.05), variational_state=state, diag_shift=0.01)

    def advance() -> object:
        driver.run(STEPS // 10, show_progress=False)
        return state.parameters

    samples = time_calls(advance, items=STEPS // 10, unit="steps/s")
    energy = float(state.expect(hamiltonian).mean.real)
    return Finding(
        checks=[
            Check(name="lanczos_energy", value=lanczos, expected=exact, tolerance=1e-8, why="free fermions"),
            Check(
                name="variational_excess",
                value=energy / exact,
                expected=1.0,
                tolerance=5e-3,
                why=f"a small RBM after {STEPS} steps, never below the ground state",
            ),
        ],
        samples=samples,
    )

"""PPO cell: a policy learns to balance a pole; environment, advantages and updates are one program.

The cart and its pole are Euler steps of Barto's equations, checked against NumPy; an episode ends after 200 steps, or
where the pole falls. Advantages are checked against the sum that defines them. A policy that does nothing falls after
about ten steps, one that pushes at random after about twenty.

Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7; Schulman et al. 2016, "High-
Dimensional Continuous Control Using Generalized Advantage Estimation", equation 16; Barto, Sutton and Anderson 1983,
"Neuronlike adaptive elements that can solve difficult learning control problems", appendix.
"""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

LANES, HORIZON, UPDATES, EPOCHS = 64, 128, 60, 4
EPISODE, ANGLE, TRACK = 200, 12 * 2 * math.pi / 360, 2.4
DISCOUNT, TRACE, CLIP = 0.99, 0.95, 0.2


def move(state, action, xp):
    """The state 0.02 s later, in NumPy or jax.numpy: position, speed, angle, angular speed."""
    position, speed, angle, turning = state
    force = xp.where(action == 1, 10.0, -10.0)
    pushed = (force + 0.05 * turning**2 * xp.sin(angle)) / 1.1
    turn = (9.8 * xp.sin(angle) - xp.cos(angle) * pushed) / (0.5 * (4 / 3 - 0.1 * xp.cos(angle) ** 2 / 1.1))
    push = pushed - 0.05 * turn * xp.cos(angle) / 1.1
    return xp.stack([position + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turning, turning + 0.02 * turn])


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    class Agent(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Linear(4, 64, rngs=rngs), nnx.Linear(64, 64, rngs=rngs)
            self.policy, self.value = nnx.Linear(64, 2, rngs=rngs), nnx.Linear(64, 1, rngs=rngs)

        def __call__(self, states):
            x = jnp.tanh(self.second(jnp.tanh(self.first(states))))
            return jax.nn.log_softmax(self.policy(x)), self.value(x)[..., 0]

    def advance(state, age, action, key):
        after, age = move(state, action, jnp), age + 1
        fallen = (jnp.abs(after[0]) > TRACK) | (jnp.abs(after[2]) > ANGLE)
        begin = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        over = fallen | (age == EPISODE)
        return jnp.where(over, begin, after), jnp.where(over, 0, age), over

    def find_advantages(values, over):
        def back(following, now):
            value, after, end = now
            advantage = 1 + DISCOUNT * after * (1 - end) - value + DISCOUNT * TRACE * (1 - end) * following
            return advantage, advantage

        zero = jnp.zeros_like(values[0])
        return jax.lax.scan(back, zero, (values[:-1], values[1:], over), reverse=True)[1]

    def play(agent, states, ages, key):
        def step(carry, key):
            states, ages = carry
            choose, begin = jax.random.split(key)
            log_policy, values = agent(states)
            actions = jax.random.categorical(choose, log_policy)
            chosen = jnp.take_along_axis(log_policy, actions[:, None], 1)[:, 0]
            after, ages, over = jax.vmap(advance)(states, ages, actions, jax.random.split(begin, LANES))
            return (after, ages), (states, actions, chosen, values, over.astype(jnp.float32))

        carry, played = jax.lax.scan(step, (states, ages), jax.random.split(key, HORIZON))
        return carry, played

    def loss(agent, states, actions, before, advantages, returns):
        log_policy, values = agent(states)
        ratio = jnp.exp(jnp.take_along_axis(log_policy, actions[..., None], -1)[..., 0] - before)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
        entropy = -(jnp.exp(log_policy) * log_policy).sum(-1).mean()
        return -gain + 0.5 * optax.l2_loss(values, returns).mean() / 100 - 0.01 * entropy

    @nnx.jit
    def update(agent, optimizer, states, ages, key):
        (after, ages), (seen, actions, before, values, over) = play(agent, states, ages, key)
        values = jnp.concatenate([values, agent(after)[1][None]])
        advantages = find_advantages(values, over)
        normal = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(EPOCHS):
            gradient = nnx.grad(loss)(agent, seen, actions, before, normal, advantages + values[:-1])
            optimizer.update(agent, gradient)
        return after, ages, over.sum()

    agent = Agent(nnx.Rngs(0))
    optimizer = nnx.Optimizer(agent, optax.chain(optax.clip_by_global_norm(0.5), optax.adam(5e-3)), wrt=nnx.Param)
    states, ages = 0.05 * jax.random.uniform(jax.random.key(1), (LANES, 4), minval=-1), jnp.zeros(LANES, jnp.int32)
    ended, number = [], iter(range(10**6))

    def learn():
        nonlocal states, ages
        states, ages, over = update(agent, optimizer, states, ages, jax.random.key(next(number)))
        ended.append(over)
        return states

    samples = time_calls(learn, items=LANES * HORIZON, unit="environment steps/s", calls=UPDATES - 1)
    lengths = [LANES * HORIZON / max(float(count), 1) for count in ended]

    random = np.random.default_rng(0)
    wanted = random.normal(size=(4, 9))
    moved = np.asarray(move(jnp.asarray(wanted, jnp.float32), jnp.arange(9) % 2, jnp))
    wanted = move(wanted, np.arange(9) % 2, np)
    values, over = random.normal(size=(6, 2)), random.integers(0, 2, (5, 2)).astype(float)
    errors = 1 + DISCOUNT * values[1:] * (1 - over) - values[:-1]
    summed = [
        sum((DISCOUNT * TRACE) ** (k - t) * np.prod(1 - over[t:k], axis=0) * errors[k] for k in range(t, 5))
        for t in range(5)
    ]
    advantages = find_advantages(jnp.asarray(values, jnp.float32), jnp.asarray(over, jnp.float32))
    return Finding(
        checks=[
            Check(
                name="motion",
                value=float(np.abs(moved - wanted).max()),
                expected=0,
                tolerance=1e-5,
                why="the same equations in NumPy",
            ),
            Check(
                name="advantages",
                value=float(np.abs(np.asarray(advantages) - summed).max()),
                expected=0,
                tolerance=1e-5,
                why="the sum of discounted errors up to the episode's end",
            ),
            Check(name="first_length", value=lengths[0], expected=22, tolerance=8, why="of pushes at random"),
            Check(
                name="learned_length",
                value=sum(lengths[-5:]) / 5,
                expected=EPISODE,
                tolerance=EPISODE / 4,
                why="the pole stands until the episode ends",
            ),
        ],
        samples=samples,
    )

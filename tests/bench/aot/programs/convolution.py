"""A small convolutional classifier, in Flax Linen with a TrainState."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.relu(nn.Conv(16, (3, 3))(x))
        h = nn.avg_pool(h, (2, 2), strides=(2, 2))
        h = nn.relu(nn.Conv(32, (3, 3), use_bias=False)(h))
        h = h.max(axis=(1, 2)) + h.mean(axis=(1, 2))
        return nn.Dense(10)(nn.LayerNorm()(h))


def loss_of(params, apply, batch):
    logits = apply({"params": params}, batch["image"] * 2.0 - 1.0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    smooth = jnp.square(jax.nn.logsumexp(logits, axis=-1)).mean()
    return losses.mean() + 1e-4 * smooth


@jax.jit
def step(state, batch):
    loss, gradients = jax.value_and_grad(loss_of)(state.params, state.apply_fn, batch)
    norm = optax.global_norm(gradients)
    gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
    return state.apply_gradients(grads=gradients), loss, norm


def make():
    net = Net()
    image = jnp.zeros((8, 16, 16, 3))
    params = net.init(jax.random.key(0), image)["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.sgd(0.1, momentum=0.9))
    return state, {"image": image, "label": jnp.zeros((8,), jnp.int32)}

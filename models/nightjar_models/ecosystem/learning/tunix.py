"""Tunix cell: LoRA learns a sequence and leaves the weights below as they are; GRPO raises a known reward to its top.

V tokens, D features, B rows, T tokens of a row.
"""

from __future__ import annotations

import math
import types

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

V, D, B, T = 16, 32, 8, 12
LORA_STEPS, GRPO_STEPS = 60, 20
WANTED = 7  # the token that GRPO rewards
WRITTEN = 6  # tokens of a completion


class Numbers:
    """Tokenizer of texts such as `3 4 5`: each number is a token."""

    def encode(self, text, **_):
        """The tokens of a text."""
        return [int(word) for word in str(text).split()]

    def decode(self, tokens, **_):
        """The text of tokens."""
        return " ".join(str(int(token)) for token in tokens)

    def pad_id(self):
        """The token that fills up rows."""
        return 0

    def bos_id(self):
        """The token before a text."""
        return 1

    def eos_id(self):
        """The token after a text."""
        return 2


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    class Model(nnx.Module):
        """The next token from the last one alone, with the signature that Tunix calls."""

        def __init__(self, rngs):
            self.config = types.SimpleNamespace(num_layers=1, num_kv_heads=1, head_dim=D)  # of the sampler's cache
            self.embed = nnx.Embed(V, D, rngs=rngs)
            self.inner = nnx.Linear(D, D, rngs=rngs)
            self.head = nnx.Linear(D, V, rngs=rngs)

        def __call__(self, tokens, positions, cache=None, attention_mask=None):
            x = self.embed(tokens)
            return self.head(x + jnp.tanh(self.inner(x))), cache

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    first_loss, last_loss, is_same, samples = _adapt(Model(nnx.Rngs(0)), mesh)
    rewards = _reinforce(Model(nnx.Rngs(1)), Model(nnx.Rngs(1)), mesh)
    return Finding(
        checks=[
            Check(
                name="first_loss",
                value=first_loss,
                expected=math.log(V),
                tolerance=0.7,
                why="new weights know nothing: about the logarithm of 16 tokens",
            ),
            Check(name="last_loss", value=last_loss, expected=0.0, tolerance=0.05, why="every next token is certain"),
            Check(
                name="base_is_same", value=float(is_same), expected=1.0, tolerance=0, why="only adapters are trained"
            ),
            Check(
                name="first_reward",
                value=rewards[0],
                expected=1 / V,
                tolerance=0.1,
                why="one of 16 tokens by chance",
            ),
            Check(
                name="last_reward",
                value=rewards[-1],
                expected=1.0,
                tolerance=0.1,
                why="the rewarded token alone is written",
            ),
        ],
        samples=samples,
    )


def _adapt(model, mesh):
    """Trains adapters on the sequence 1 2 3 ...; loss before and after, whether the other weights are as before."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    import qwix
    from flax import nnx
    from tunix.sft import peft_trainer

    token = jnp.ones((1, 1), jnp.int32)
    provider = qwix.LoraProvider(module_path=".*inner|.*head", rank=4, alpha=8.0)
    adapted = qwix.apply_lora_to_model(
        model, provider, tokens=token, positions=token, cache=None, attention_mask=jnp.ones((1, 1, 1), bool)
    )

    def read_base():
        state = nnx.state(adapted, nnx.filterlib.Not(nnx.LoRAParam))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.to_pure_dict(state))]

    def measure_loss():
        logits, _ = adapted(tokens, None)
        return float(optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean())

    tokens = np.tile(np.arange(1, T + 1, dtype=np.int32), (B, 1))
    base, first_loss = read_base(), measure_loss()
    config = peft_trainer.TrainingConfig(eval_every_n_steps=10 * LORA_STEPS, max_steps=LORA_STEPS)
    trainer = peft_trainer.PeftTrainer(adapted, optax.adam(3e-2), config).with_gen_model_input_fn(
        lambda batch: {
            "input_tokens": batch.input_tokens,
            "input_mask": batch.input_mask,
            "positions": jnp.broadcast_to(jnp.arange(T), (B, T)),
            "attention_mask": jnp.tril(jnp.ones((B, T, T), bool)),
        }
    )
    batch = peft_trainer.TrainingInput(input_tokens=tokens, input_mask=np.ones_like(tokens))
    with mesh:
        trainer.train([batch] * LORA_STEPS)
    is_same = all(np.array_equal(old, new) for old, new in zip(base, read_base(), strict=True))
    predict = nnx.jit(lambda model, tokens: model(tokens, None)[0])
    samples = time_calls(lambda: predict(adapted, tokens), items=B * T, unit="tokens/s", calls=20)
    return first_loss, measure_loss(), is_same, samples


def _reinforce(policy, reference, mesh):
    """Trains a policy by GRPO to write one token; the mean reward of each step."""
    import numpy as np
    import optax
    from tunix.rl import rl_cluster
    from tunix.rl.grpo import grpo_learner
    from tunix.rl.rollout import base_rollout

    rewards = []

    def count_wanted(prompts, completions, **_):
        scores = [text.split().count(str(WANTED)) / WRITTEN for text in completions]
        rewards.append(float(np.mean(scores)))
        return scores

    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adam(3e-2), eval_every_n_steps=10 * GRPO_STEPS, max_steps=GRPO_STEPS
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=WRITTEN, max_prompt_length=4, kv_cache_size=64, temperature=1.0, eos_tokens=[2]
        ),
    )
    cluster = rl_cluster.RLCluster(actor=policy, reference=reference, tokenizer=Numbers(), cluster_config=config)
    learner = grpo_learner.GRPOLearner(
        rl_cluster=cluster,
        reward_fns=count_wanted,
        algo_config=grpo_learner.GRPOConfig(num_generations=8, beta=0.0),
    )
    batch = {"prompts": np.array(["3 4 5", "6 7 8", "9 10 11", "5 6 7"])}
    with mesh:
        learner.train([batch] * GRPO_STEPS)
    return rewards

"""Actions of a policy that is only evaluated: those of SB3's predict."""

import numpy as np
import pytest
import torch

from rl.config import TrainConfig, resolve
from rl.results.evaluator import Acting
from rl.training.run import untrained_model


def model_of(**settings):
    given = {"env": "MiniGrid-DoorKey-5x5-v0", "timesteps": 2048, "eval_freq": 2048, **settings}
    model = untrained_model(resolve(TrainConfig(**given)))
    model.learn(given["timesteps"], log_interval=None)
    return model


@pytest.fixture(scope="module")
def model():
    return model_of()


def observations_of(model, count=64):
    """Raw ones of a random policy."""
    generator = np.random.default_rng(0)
    envs = model.get_env().unwrapped
    envs.reset()
    seen = [envs.step(generator.integers(0, 7, envs.num_envs))[0] for _ in range(count // envs.num_envs)]
    return np.concatenate(seen)


def predicted(model, raw, greedy):
    """SB3's actions."""
    return model.policy.predict(model.get_vec_normalize_env().normalize_obs(raw), deterministic=greedy)[0]


@pytest.mark.parametrize("greedy", [True, False])
def test_actions_are_those_of_sb3(model, greedy):
    raw = observations_of(model)
    act = Acting(model)
    assert act._network is not None
    torch.manual_seed(5)
    ours = [act(raw, greedy) for _ in range(20)]
    torch.manual_seed(5)
    assert np.array_equal(ours, [predicted(model, raw, greedy) for _ in range(20)])
    assert len(np.unique(ours)) > (0 if greedy else 2)


def test_a_column_that_training_has_not_seen_counts(model):
    raw = observations_of(model, 8)
    unseen = Acting(model)._others[0]
    raw[:, unseen] = 3.0
    weight = model.policy.mlp_extractor.policy_net[0].weight
    with torch.no_grad():  # so that it decides
        weight[:, unseen] = 100.0
    assert np.array_equal(Acting(model)(raw, True), predicted(model, raw, True))

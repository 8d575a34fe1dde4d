"""The hook on sb3-contrib: masked actions and padded rows count nowhere in the objective; the rest is contrib's."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.utils import LinearSchedule
from support.toy_env import TABLE, make, same_weights

from dem_apps import build_objective
from rl import with_entropy_objective

CASES = [
    (PPO, spaces.Discrete(5)),
    (A2C, spaces.Discrete(5)),
    (MaskablePPO, spaces.Discrete(5)),
    (MaskablePPO, spaces.MultiDiscrete([3, 4])),
    (RecurrentPPO, spaces.Discrete(5)),
    (RecurrentPPO, spaces.MultiDiscrete([3, 4])),
]
ALGORITHMS = [MaskablePPO, RecurrentPPO]
#: Of Discrete(5) in the tests that pass masks by hand: action 2 is never allowed, action 4 not in every second state.
FORBIDDEN = torch.tensor(
    [[False, False, True, False, False], [False, False, True, False, True]]
).repeat(8, 1)


def masked_policy(name, space=None):
    """A policy in training whose logits are far from uniform."""
    policy = make(with_entropy_objective(MaskablePPO, name), space).policy
    with torch.no_grad():
        policy.action_net.weight.mul_(100)
        policy.action_net.bias.add_(3.0)
    policy.set_training_mode(True)
    return policy


OBSERVATIONS = torch.rand(16, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("algorithm", "space"), CASES)
def test_entropy_is_the_algorithms_own_bit_for_bit(algorithm, space):
    stock = make(algorithm, space).learn(96)
    assert same_weights(stock, make(with_entropy_objective(algorithm, "entropy"), space).learn(96))
    without = make(algorithm, space, ent_coef=0.0).learn(96)
    assert same_weights(
        without, make(with_entropy_objective(algorithm, "none"), space, ent_coef=5.0).learn(96)
    )
    assert not same_weights(stock, without)


@pytest.mark.parametrize("name", ["adadem", "cadf", "dem", "adadem-norm", "adadem-mec"])
def test_forbidden_actions_leave_value_gradient_and_table_alone(name):
    def evaluate(logit):
        policy = masked_policy(name)
        with torch.no_grad():
            policy.action_net.bias[2] = logit
        term = policy.evaluate_actions(OBSERVATIONS, torch.zeros(16), action_masks=~FORBIDDEN)[2]
        return term, torch.autograd.grad(term, policy.action_net.weight)[0], policy

    term, gradient, policy = evaluate(0.0)
    logits = policy.action_net(policy.mlp_extractor(OBSERVATIONS)[0])
    objective = build_objective(name, num_classes=5)
    expected = objective(logits, class_mask=FORBIDDEN)
    torch.testing.assert_close(term, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, policy.action_net.weight)[0])
    assert torch.equal(gradient[2], torch.zeros_like(gradient[2]))
    assert gradient[4].abs().max() > 0  # forbidden in every second state only

    for logit in (50.0, -1e8, 1e8):
        other_term, other_gradient, other_policy = evaluate(logit)
        assert torch.equal(term, other_term)
        assert torch.equal(gradient, other_gradient)
        tables = (key for key in policy.state_dict() if key.startswith("entropy_objective"))
        assert all(
            torch.equal(policy.state_dict()[key], other_policy.state_dict()[key]) for key in tables
        )
    if hasattr(objective, "class_marginals"):
        assert torch.equal(policy.state_dict()[TABLE], objective.class_marginals)
        assert not torch.equal(
            objective.class_marginals, build_objective(name, num_classes=5).class_marginals
        )


def test_recurrent_ppo_tells_which_rows_are_padding(monkeypatch):
    model = make(with_entropy_objective(RecurrentPPO, "adadem"), n_epochs=1, learning_rate=1e-12)
    with torch.no_grad():
        model.policy.action_net.weight.mul_(300)  # states that differ in entropy
    seen = []
    evaluate, buffer = type(model.policy).evaluate_actions, model.rollout_buffer

    def spy(policy, obs, *args):
        seen.append((len(obs), int(policy.counted_rows.sum())))
        return evaluate(policy, obs, *args)

    with monkeypatch.context() as patch:
        patch.setattr(type(model.policy), "evaluate_actions", spy)
        model.learn(32)
    assert [count for _, count in seen] == [16, 16]  # batches of 16 steps
    assert max(rows for rows, _ in seen) > 16  # and padding beside them
    assert model.policy.counted_rows is None
    assert "get" not in vars(buffer)

    model.policy.set_training_mode(False)
    with torch.no_grad():
        entropies = []
        for data in buffer.get(16):
            states = data.lstm_states, data.episode_starts
            found = model.policy.evaluate_actions(
                data.observations, data.actions.flatten(), *states
            )
            entropies.append(found[2][data.mask > 1e-8])
    assert model.logger.name_to_value["train/policy_entropy"] == pytest.approx(
        torch.cat(entropies).mean().item(), 1e-5
    )
    logged = model.logger.name_to_value
    assert logged["train/entropy_objective"] == pytest.approx(-logged["train/entropy_loss"], 1e-5)


@pytest.mark.parametrize(("algorithm", "space"), CASES)
def test_a_temperature_behind_the_last_layer_is_in_the_objective(algorithm, space):
    def change(policy, latent):
        made = policy.action_dist.proba_distribution(action_logits=policy.action_net(latent))
        for name in ("distribution", "distributions"):  # sb3-contrib's plural has several
            parts = getattr(made, name, None) or []
            flat = [
                type(part)(logits=part.logits / 0.05)
                for part in (parts if isinstance(parts, list) else [parts])
            ]
            setattr(made, name, flat if isinstance(parts, list) else flat[0])
        return made

    base = algorithm.policy_aliases["MlpLstmPolicy" if algorithm is RecurrentPPO else "MlpPolicy"]
    flat = type("Flat", (base,), {"_get_action_dist_from_latent": change})
    entropy, dem = (
        make(with_entropy_objective(algorithm, name), space, policy=flat, ent_coef=0.5)
        .learn(64)
        .logger.name_to_value
        for name in ("entropy", "dem")
    )
    assert dem["train/entropy_objective"] == pytest.approx(
        entropy["train/entropy_objective"], abs=1e-4
    )
    assert dem["train/policy_entropy"] == pytest.approx(entropy["train/policy_entropy"], abs=1e-4)


@pytest.mark.parametrize("algorithm", [PPO, A2C, *ALGORITHMS])
def test_what_is_logged_has_the_same_names_everywhere(algorithm):
    model = make(
        with_entropy_objective(algorithm, "adadem"), ent_coef=LinearSchedule(0.4, 0.2, 1.0)
    ).learn(64)
    logged = model.logger.name_to_value
    assert 0 < logged["train/policy_entropy"] <= np.log(5)
    assert logged["train/entropy_objective"] == pytest.approx(-logged["train/entropy_loss"], 1e-4)
    assert logged["train/ent_coef"] == pytest.approx(0.2)
    assert 0 <= logged["train/approx_kl"] < 0.1
    assert ("train/clip_fraction" in logged) == (algorithm is not A2C)  # A2C clips nothing

"""The hook changes the entropy term of PPO and A2C in training, and nothing else."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.utils import LinearSchedule
from support import cases, refuses
from support.toy_env import TABLE, ToyEnv, make, same_weights
from torch.distributions import Categorical

from dem_apps import build_objective
from rl import with_entropy_objective
from rl.fast.ppo import FastPPO

OBJECTIVES = [("adadem", {}), ("cadf", {}), ("dem", {"tau": 0.8, "alpha": 1.2})]
OBJECTIVES += [("adadem-norm", {}), ("adadem-mec", {})]


def toy_model(objective, space=None, algorithm=PPO, **arguments):
    options = {key: arguments.pop(key) for key in ("tau", "alpha") if key in arguments}
    return make(with_entropy_objective(algorithm, objective, **options), space, **arguments)


def batch(model, size=16):
    generator = torch.Generator().manual_seed(1)
    actions = np.stack([model.action_space.sample() for _ in range(size)])
    return torch.rand(size, 4, generator=generator), torch.as_tensor(actions)


@pytest.mark.parametrize(("name", "options"), OBJECTIVES)
@pytest.mark.parametrize("sizes", [[5], [3, 4]])
def test_term_and_gradient_are_those_of_an_objective_per_dimension_on_the_raw_logits(
    name, options, sizes
):
    model = toy_model(name, spaces.MultiDiscrete(sizes) if len(sizes) > 1 else None, **options)
    with torch.no_grad():
        model.policy.action_net.weight.mul_(100)  # away from the uniform start
        # CADF and DEM see a shift that normalised logits would hide
        model.policy.action_net.bias.add_(3.0)
    model.policy.set_training_mode(True)
    observations, actions = batch(model)
    term = model.policy.evaluate_actions(observations, actions)[2]
    gradient = torch.autograd.grad(term.mean(), model.policy.action_net.weight)[0]

    logits = model.policy.action_net(model.policy.mlp_extractor(observations)[0])
    parts = logits.split(sizes, dim=1)
    expected = sum(build_objective(name, part.shape[1], **options)(part, dim=1) for part in parts)
    expected_gradient = torch.autograd.grad(expected, model.policy.action_net.weight)[0]
    assert term.shape == ()  # the mean, which SB3 would take next
    torch.testing.assert_close(term.mean(), expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_the_table_moves_only_when_the_policy_trains():
    model = toy_model("adadem")
    observations, actions = batch(model)
    before, entropy = (
        model.policy.state_dict()[TABLE].clone(),
        model.policy.get_distribution(observations).entropy(),
    )
    model.policy.set_training_mode(False)
    assert torch.equal(model.policy.evaluate_actions(observations, actions)[2], entropy)
    model.policy.set_training_mode(True)
    with torch.no_grad():
        assert torch.equal(model.policy.evaluate_actions(observations, actions)[2], entropy)
    assert torch.equal(model.policy.state_dict()[TABLE], before)
    model.policy.evaluate_actions(observations, actions)
    assert not torch.equal(model.policy.state_dict()[TABLE], before)


def test_the_table_is_saved_in_the_zip_and_not_optimised(tmp_path):
    model = toy_model("adadem").learn(64)
    model.save(tmp_path / "model.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing starts afresh
        loaded = type(model).load(tmp_path / "model.zip", env=ToyEnv())
    other = toy_model("adadem")
    other.set_parameters(model.get_parameters())
    saved = model.policy.state_dict()
    for read in (loaded.policy.state_dict(), other.policy.state_dict()):
        assert saved.keys() == read.keys()
        assert all(torch.equal(saved[name], read[name]) for name in saved)
    assert saved[TABLE].shape == (5, 5)
    assert not torch.equal(saved[TABLE], torch.full((5, 5), 0.2))
    loaded.learn(32, reset_num_timesteps=False)
    assert not torch.equal(loaded.policy.state_dict()[TABLE], saved[TABLE])
    optimised = {
        id(parameter)
        for group in model.policy.optimizer.param_groups
        for parameter in group["params"]
    }
    assert optimised == {id(parameter) for parameter in model.policy.parameters()}


def test_a_zip_of_another_objective_is_refused(tmp_path):
    toy_model("adadem").save(tmp_path / "model.zip")
    with pytest.raises(ValueError, match=r"saved with the objective 'adadem'.*trains 'cadf'"):
        with_entropy_objective(PPO, "cadf").load(tmp_path / "model.zip")


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_a_zip_of_the_plain_algorithm_is_a_start(algorithm, tmp_path):
    stock = make(algorithm).learn(32)
    stock.save(tmp_path / "plain.zip")
    Hooked = with_entropy_objective(algorithm, "adadem")
    with pytest.warns(
        UserWarning,
        match="come from a model without an entropy objective, so 'adadem' starts afresh",
    ):
        loaded = Hooked.load(tmp_path / "plain.zip", env=ToyEnv(stock.action_space))
    assert same_weights(stock, loaded)
    assert str(loaded.policy.optimizer.state_dict()) == str(stock.policy.optimizer.state_dict())
    uniform = torch.full((5, 5), 0.2)
    assert torch.equal(loaded.policy.state_dict()[TABLE], uniform)
    loaded.learn(32, reset_num_timesteps=False)
    assert not torch.equal(loaded.policy.state_dict()[TABLE], uniform)
    with pytest.warns(UserWarning, match="starts afresh"):
        # of a model that has learned: what it knew is forgotten
        loaded.set_parameters(stock.get_parameters())
    assert torch.equal(loaded.policy.state_dict()[TABLE], uniform)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiBinary(3)])
def test_action_spaces_without_logits(space):
    refuses(
        f"Discrete and one-dimensional MultiDiscrete.*not {type(space).__name__}",
        toy_model,
        "adadem",
        space,
    )
    stock = make(PPO, space).learn(32)
    assert same_weights(stock, toy_model("entropy", space).learn(32))


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_ent_coef_may_be_a_schedule(algorithm, tmp_path):
    schedule = LinearSchedule(0.5, 0.1, 0.75)
    ours = toy_model("entropy", algorithm=algorithm, ent_coef=schedule).learn(64)
    assert not same_weights(
        ours, toy_model("entropy", algorithm=algorithm, ent_coef=lambda _progress: 0.5).learn(64)
    )
    assert ours.logger.name_to_value["train/ent_coef"] == 0.1
    ours.save(tmp_path / "model.zip")
    assert type(ours).load(tmp_path / "model.zip").ent_coef(0.5) == schedule(0.5)


def test_an_objective_without_weight_is_pointed_out(caplog):
    toy_model("entropy", ent_coef=0.0)
    toy_model("adadem", ent_coef=0.1)
    assert not caplog.records
    toy_model("adadem", ent_coef=0.0)
    assert "ent_coef is 0, so the entropy objective 'adadem' has no effect" in caplog.text


Mlp = PPO.policy_aliases["MlpPolicy"]


class OnALayer(Mlp):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.action_net.register_forward_hook(lambda _layer, _inputs, logits: logits / 0.05)


class Changed(Mlp):
    """A policy that changes its logits behind action_net, as ``change(policy, logits)`` says."""

    change: Any

    def _get_action_dist_from_latent(self, latent):
        return type(self).change(self, self.action_net(latent))


def replaced(policy, logits):
    """A distribution of SB3's with another one of torch's in it: a share of the actions is always the first."""
    made = policy.action_dist.proba_distribution(logits)
    made.distribution = Categorical(probs=0.7 * made.distribution.probs + 0.3 * torch.eye(5)[0])
    return made


CHANGES = {
    "mask": lambda policy, z: policy.action_dist.proba_distribution(
        z.index_fill(1, torch.tensor([2]), -torch.inf)
    ),
    "large mask": lambda policy, z: policy.action_dist.proba_distribution(
        z.index_fill(1, torch.tensor([2]), -1e8)
    ),
    "replaced": replaced,
}


@cases(OnALayer, *(type(name, (Changed,), {"change": change}) for name, change in CHANGES.items()))
def test_the_objective_is_that_of_the_logits_that_the_policy_acts_by(policy):
    """dem with tau = alpha = 1 is the entropy, wherever a policy changes its logits; the fast code leaves it alone."""
    trained = [
        make(with_entropy_objective(algorithm, name), policy=policy, ent_coef=0.5).learn(64)
        for algorithm, name in ((PPO, "entropy"), (PPO, "dem"), (FastPPO, "dem"))
    ]
    terms = [model.logger.name_to_value["train/entropy_objective"] for model in trained]
    assert terms == pytest.approx([terms[0]] * 3, abs=1e-4)
    for model in trained[1:]:
        for value, expected in zip(
            model.policy.parameters(), trained[0].policy.parameters(), strict=True
        ):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_logits_that_no_distribution_shows_are_refused():
    class Aside(Mlp):
        def evaluate_actions(self, obs, actions):
            logits = self.get_distribution(obs).distribution.logits / 0.05
            scored = Categorical(logits=logits)
            return self.predict_values(obs), scored.log_prob(actions), scored.entropy()

    model = make(with_entropy_objective(PPO, "adadem"), policy=Aside)
    refuses(
        r"^Aside\.evaluate_actions scores the actions by logits that its distribution",
        model.learn,
        64,
    )


@pytest.mark.parametrize("weight", ["auto", "lin_0.01", None, math.nan])
def test_a_weight_that_is_none_is_refused_when_the_model_is_made(weight):
    refuses(
        rf"^ent_coef: expected a number, or a function .* not {weight!r}",
        toy_model,
        "adadem",
        ent_coef=weight,
    )


def test_mistakes_are_told():
    refuses(
        "MaskablePPO and RecurrentPPO of sb3_contrib, not DQN",
        with_entropy_objective,
        DQN,
        "adadem",
    )
    refuses("'none' has no options, but got tau", with_entropy_objective, PPO, "none", tau=1.0)
    refuses(
        r"not MultiDiscrete of shape \(1, 2\)", toy_model, "adadem", spaces.MultiDiscrete([[2, 3]])
    )

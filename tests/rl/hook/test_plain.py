"""Zips of hooked models that SB3 and sb3-contrib open without this package."""

import copy
import io
import pickle
import subprocess
import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support.refusals import refuses

from rl import save_plain, with_entropy_objective
from rl.config import TrainConfig, resolve
from rl.training.run import untrained_model

TABLE = "entropy_objective.0.class_marginals"
SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "seed": 0, "device": "cpu", "ent_coef": 0.01}


class MaskedCartPole(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def action_masks(self):
        return np.ones(2, bool)


def opened_elsewhere(algorithm, file):
    """Class and greedy actions of the zip's policy in a process that imports nothing of this package."""
    program = (
        f"import sys; from {algorithm.__module__.split('.')[0]} import {algorithm.__name__} as Algorithm\n"
        f"import numpy as np\nmodel = Algorithm.load({str(file)!r}, device='cpu')\n"
        "observations = np.random.default_rng(0).normal(size=(50, *model.observation_space.shape)).astype('float32')\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('rl', 'dem_apps', 'seg')]\n"
        "print(model.policy_class.__module__, *model.predict(observations, deterministic=True)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    module, *actions = done.stdout.split()
    return module, np.array(actions, int)


@pytest.mark.parametrize(
    ("algorithm", "policy", "env", "objective"),
    [
        (PPO, "MlpPolicy", "CartPole-v1", "adadem"), (A2C, "MlpPolicy", "CartPole-v1", "entropy"),
        (MaskablePPO, "MlpPolicy", MaskedCartPole, "adadem"),
        (RecurrentPPO, "MlpLstmPolicy", "CartPole-v1", "adadem"),
    ],
)  # fmt: skip
def test_the_zip_opens_without_this_package(algorithm, policy, env, objective, tmp_path):
    arguments = {
        key: value for key, value in SMALL.items() if algorithm is not A2C or key not in ("batch_size", "n_epochs")
    }
    made = gym.make(env) if isinstance(env, str) else env()
    model = with_entropy_objective(algorithm, objective)(policy, made, **arguments).learn(64)
    assert save_plain(model, tmp_path / "model.zip") == [tmp_path / "model.zip"]
    module, actions = opened_elsewhere(algorithm, tmp_path / "model.zip")
    assert module.split(".")[0] in ("stable_baselines3", "sb3_contrib")
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(actions, model.predict(observations, deterministic=True)[0])
    opened = algorithm.load(tmp_path / "model.zip", env=made)
    ours, theirs = model.policy.optimizer.state_dict(), opened.policy.optimizer.state_dict()
    assert ours["state"].keys() == theirs["state"].keys()
    assert all(torch.equal(ours["state"][key][name], value) for key, state in theirs["state"].items()
               for name, value in state.items() if isinstance(value, torch.Tensor))  # fmt: skip
    opened.learn(64)


def test_the_fast_model_of_rl_train_with_its_statistics(tmp_path):
    model = untrained_model(resolve(TrainConfig(timesteps=1024, eval_freq=1024)))
    model.learn(1024, log_interval=None)
    (tmp_path / "model.vecnormalize.pkl").symlink_to(tmp_path / "elsewhere")
    files = save_plain(model, tmp_path / "model.zip")
    assert files[1] == tmp_path / "model.vecnormalize.pkl"
    assert not (tmp_path / "elsewhere").exists()
    assert opened_elsewhere(PPO, files[0])[0] == "stable_baselines3.common.policies"
    program = (
        f"import pickle, sys; envs = pickle.load(open({str(files[1])!r}, 'rb')); print(type(envs).__module__)\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('rl', 'dem_apps', 'seg')]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("stable_baselines3"), done.stderr
    inner = model.get_vec_normalize_env()
    assert inner is not None
    plain = VecNormalize.load(str(files[1]), inner.venv)
    raw = np.random.default_rng(0).integers(0, 3, (5, 2835)).astype(np.float32)
    assert np.array_equal(plain.normalize_obs(raw), inner.normalize_obs(raw))
    assert not plain.training


@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_the_weight_in_the_zip_is_the_schedules_value_now(algorithm, tmp_path):
    schedule = LinearSchedule(0.5, 0.1, 1.0)
    model = with_entropy_objective(algorithm, "adadem")(
        "MlpPolicy", MaskedCartPole(), **{**SMALL, "ent_coef": schedule}
    )
    for steps, weight in ((0, 0.5), (64, 0.1)):
        save_plain(model.learn(steps) if steps else model, tmp_path / "model.zip")
        opened = algorithm.load(tmp_path / "model.zip", env=MaskedCartPole())
        assert opened.ent_coef == pytest.approx(weight)
        opened.learn(32)
    assert model.ent_coef is schedule


@pytest.fixture(scope="module")
def learned():
    """A hooked model whose objective has a state, and whose policy has made a distribution with a graph."""
    return with_entropy_objective(PPO, "adadem")("MlpPolicy", "CartPole-v1", **SMALL).learn(64)


def reopened(saved):
    return torch.load(io.BytesIO(saved), weights_only=False)


def saved_by_torch(policy):
    content = io.BytesIO()
    torch.save(policy, content)
    return content.getvalue()


def loaded_alone(policy, kind):
    content = io.BytesIO()
    policy.save(content)
    content.seek(0)
    return kind.load(content, device="cpu")


COPIES = {
    "pickle": lambda policy: pickle.loads(pickle.dumps(policy)),
    "cloudpickle": lambda policy: pickle.loads(cloudpickle.dumps(policy)),
    "torch.save": lambda policy: reopened(saved_by_torch(policy)),
    "deepcopy": copy.deepcopy,
    "save and load": lambda policy: loaded_alone(policy, type(policy)),
    "save and the plain class's load": lambda policy: loaded_alone(policy, ActorCriticPolicy),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_policy_can_be_copied_in_every_way_that_a_plain_one_can(name, learned):
    made = COPIES[name](learned.policy)
    plain = "plain" in name
    assert type(made) is (ActorCriticPolicy if plain else type(learned.policy))
    ours, theirs = learned.policy.state_dict(), made.state_dict()
    assert not (set(ours) - set(theirs) - ({TABLE} if plain else set()))
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    one, two = (policy.predict(observations, deterministic=True)[0] for policy in (learned.policy, made))
    assert np.array_equal(one, two)


class OwnPPO(with_entropy_objective(PPO, "dem", tau=0.9)):
    pass


def test_classes_are_pickled_by_what_they_are_made_of(learned):
    for kind in (type(learned), type(learned.policy), OwnPPO):
        assert pickle.loads(pickle.dumps(kind)) is kind
        assert copy.deepcopy(kind) is kind


def test_parameters_go_to_a_plain_model_and_to_a_hooked_one_with_the_objectives_state(learned):
    parameters = learned.get_parameters()
    plain = PPO("MlpPolicy", "CartPole-v1", **{**SMALL, "seed": 1})
    plain.set_parameters(parameters)
    hooked = type(learned)("MlpPolicy", "CartPole-v1", **{**SMALL, "seed": 1})
    hooked.set_parameters(parameters)
    for model in (plain, hooked):
        assert all(
            torch.equal(learned.policy.state_dict()[key], value) for key, value in model.policy.state_dict().items()
        )
    assert (learned.policy.state_dict()[TABLE] != 0.5).any()


def test_a_policy_class_of_ones_own_stays(tmp_path):
    class Own(ActorCriticPolicy):
        pass

    model = with_entropy_objective(PPO, "adadem")(Own, "CartPole-v1", **SMALL)
    save_plain(model, tmp_path / "own.zip")
    assert PPO.load(tmp_path / "own.zip").policy_class.__name__ == "Own"


def test_a_plain_model_and_a_wrong_ending(tmp_path):
    model = PPO("MlpPolicy", DummyVecEnv([lambda: gym.make("CartPole-v1")]), **SMALL)
    save_plain(model, tmp_path / "plain.zip")
    assert PPO.load(tmp_path / "plain.zip").num_timesteps == 0
    refuses(r"expected a file ending in \.zip", save_plain, model, tmp_path / "plain")

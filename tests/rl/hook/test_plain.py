"""Zips of hooked models that SB3 and sb3-contrib open without this package."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import LinearSchedule
from support.same_state import same
from support.toy_env import TABLE, ToyEnv, make

from rl import save_plain, with_entropy_objective


def observations(shape):
    return np.random.default_rng(0).normal(size=(50, *shape)).astype(np.float32)


HOOKED = {PPO: "adadem", A2C: "entropy", MaskablePPO: "adadem", RecurrentPPO: "adadem"}


def test_zips_open_without_this_package(tmp_path):
    """In a process that imports nothing of it, policies of every algorithm; of rl.train's: tests/rl/test_export.py."""
    models = {kind: make(with_entropy_objective(kind, objective)).learn(64) for kind, objective in HOOKED.items()}
    for kind, model in models.items():
        assert save_plain(model, tmp_path / f"{kind.__name__}.zip") == [tmp_path / f"{kind.__name__}.zip"]
    program = (
        "import sys; import numpy as np\n"
        "from stable_baselines3 import A2C, PPO\nfrom sb3_contrib import MaskablePPO, RecurrentPPO\n"
        f"for kind in ({', '.join(kind.__name__ for kind in HOOKED)}):\n"
        "    model = kind.load(kind.__name__ + '.zip', device='cpu')\n"
        "    seen = np.random.default_rng(0).normal(size=(50, *model.observation_space.shape)).astype('float32')\n"
        "    print(model.policy_class.__module__, *model.predict(seen, deterministic=True)[0])\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('rl', 'dem_apps', 'seg')]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for model, line in zip(models.values(), done.stdout.splitlines(), strict=True):
        module, *actions = line.split()
        assert module.split(".")[0] in ("stable_baselines3", "sb3_contrib")
        seen = observations(model.observation_space.shape)
        assert list(map(int, actions)) == model.predict(seen, deterministic=True)[0].tolist()
    for kind, model in models.items():  # and train on, with the optimiser's state
        opened = kind.load(tmp_path / f"{kind.__name__}.zip", env=ToyEnv())
        ours, theirs = model.policy.optimizer.state_dict(), opened.policy.optimizer.state_dict()
        assert same(ours["state"], theirs["state"])
        opened.learn(64)


@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_the_weight_in_the_zip_is_the_schedules_value_now(algorithm, tmp_path):
    schedule = LinearSchedule(0.5, 0.1, 1.0)
    model = make(with_entropy_objective(algorithm, "adadem"), ent_coef=schedule)
    for steps, weight in ((0, 0.5), (64, 0.1)):
        save_plain(model.learn(steps) if steps else model, tmp_path / "model.zip")
        opened = algorithm.load(tmp_path / "model.zip", env=ToyEnv())
        assert opened.ent_coef == pytest.approx(weight)
        opened.learn(32)
    assert model.ent_coef is schedule


@pytest.fixture(scope="module")
def learned():
    """A hooked model whose objective has a state, and whose policy has made a distribution with a graph."""
    return make(with_entropy_objective(PPO, "adadem")).learn(64)


def loaded_alone(policy, kind):
    content = io.BytesIO()
    policy.save(content)
    content.seek(0)
    return kind.load(content, device="cpu")


COPIES = {
    "pickle": lambda policy: pickle.loads(pickle.dumps(policy)),
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
    one, two = (policy.predict(observations((4,)), deterministic=True)[0] for policy in (learned.policy, made))
    assert np.array_equal(one, two)


def test_a_plain_model_is_saved_as_it_is(tmp_path):
    model = make(PPO)
    save_plain(model, tmp_path / "plain.zip")
    assert PPO.load(tmp_path / "plain.zip").num_timesteps == 0

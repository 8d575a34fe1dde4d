"""Environments without an entry: pictures, dictionaries, numbers, endless ones; games of MinAtar; presets."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from support import cases, refuses
from support.short_training import interrupted_at

import rl.evaluate
import rl.export
import rl.train
from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint
from rl import with_entropy_objective
from rl.config import TrainConfig, resolve, settings_of_run
from rl.envs.make import make_env, make_training_envs, normalised, try_out
from rl.training.run import untrained_model

PICTURE = spaces.Box(0, 255, (36, 40, 1), np.uint8)
SPACES = {
    "picture": PICTURE,
    "small": spaces.Box(0, 255, (6, 8, 1), np.uint8),
    "dict": spaces.Dict(
        picture=PICTURE,
        step=spaces.Box(0, 9, (1,), np.int64),
        side=spaces.Discrete(3, start=2),
        both=spaces.MultiDiscrete([2, 2], start=[1, 2]),
        heat=spaces.Box(0, 9, (2,), np.float32),
    ),
    "number": spaces.Discrete(3, start=2),
}


class Drawn(gym.Env):
    """Say which half is brighter; ``kind`` is how it is shown. Actions and numbers do not begin at 0."""

    action_space = spaces.Discrete(2, start=5)

    def __init__(self, kind):
        self.observation_space = SPACES[kind]

    def _show(self, space):
        if isinstance(space, spaces.Dict):
            shown = {
                "picture": self._show(PICTURE),
                "step": np.array([self.steps]),
                "side": 2 + self.side,
            }
            return {
                **shown,
                "both": np.array([1 + self.side, 2]),
                "heat": np.full(2, 9 * self.side, np.float32),
            }
        if isinstance(space, spaces.Discrete):
            return 2 + self.side
        picture = self.np_random.integers(0, 60, space.shape).astype(np.uint8)
        half = picture.shape[1] // 2
        picture[:, half * self.side : half * self.side + half] += 190
        return picture

    def _next(self):
        self.side = int(self.np_random.integers(2))
        return self._show(self.observation_space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(action == 5 + self.side)
        self.steps += 1
        return self._next(), reward, self.steps == 9, False, {"is_success": np.ones(1, bool)}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for kind in SPACES:
        gym.registry.pop(f"Drawn-{kind}-v0", None)
        gym.register(f"Drawn-{kind}-v0", Drawn, kwargs={"kind": kind})
    monkeypatch.setattr("rl.training.callback.STEPS_PER_LINE", 64)


FLAGS = [
    "--timesteps",
    "256",
    "--hyperparameters.n_steps",
    "64",
    "--hyperparameters.n_epochs",
    "1",
    "--eval-episodes",
    "2",
    "--eval-freq",
    "128",
]
REWARDS = "dict(norm_obs=False, norm_reward=True)"


@cases(
    ("picture", "CnnPolicy", None),
    ("dict", "MultiInputPolicy", REWARDS),
    ("number", "MlpPolicy", REWARDS),
)
def test_it_takes_sb3s_own_path_and_resumes(kind, policy, normalize, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [
        "--env",
        f"Drawn-{kind}-v0",
        *FLAGS,
        *(["--hyperparameters.normalize", normalize] if normalize else []),
    ]
    rl.train.main([*flags, "--run-dir", "whole"])
    scores = json.loads(Path("whole/eval.json").read_text())
    # not cut, however short the training
    assert (scores["episodes"], scores["mean_length"]) == (2, 9)
    config = settings_of_run(Path("whole"))
    assert config.hyperparameters["policy"] == policy
    assert untrained_model(config).not_fast is not None
    rl.evaluate.main(["--run", "whole", "--episodes", "2"])
    rl.export.main(["--run", "whole", "--out", "plain.zip"])
    assert PPO.load("plain.zip").action_space == spaces.Discrete(2)

    interrupted_at(128, monkeypatch, lambda: rl.train.main([*flags, "--run-dir", "broken"]))
    rl.train.main(["--resume", "broken"])
    assert Path("broken/metrics.jsonl").read_text() == Path("whole/metrics.jsonl").read_text()
    one, two = (
        load_checkpoint(Path(run) / "checkpoints", "last")["policy"] for run in ("whole", "broken")
    )
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("kind", SPACES)
def test_the_networks_are_given_what_vec_normalize_and_sb3_give(kind):
    """Pictures as they are or normalised whole; one running mean per key; no value is cut to a whole number."""
    made = make_training_envs(f"Drawn-{kind}-v0", None, 2)
    space = made.observation_space
    rewards = normalised(made, 0.99, observations=False)
    assert rewards.observation_space == space
    assert not rewards.norm_obs
    if kind == "number":
        assert space == spaces.Discrete(3)
        refuses(
            r"^normalize: VecNormalize only supports .* not Discrete\(3\)", normalised, made, 0.99
        )
        return
    envs = normalised(made, 0.99)
    parts = {"": envs.observation_space} if kind != "dict" else dict(envs.observation_space.items())  # type: ignore
    seen = PPO(
        "MultiInputPolicy" if kind == "dict" else "MlpPolicy",
        envs,
        n_steps=9,
        batch_size=18,
        n_epochs=1,
    )
    seen.learn(18)
    for key, part in parts.items():
        if isinstance(part, spaces.Box):
            stored = (
                seen.rollout_buffer.observations[key] if key else seen.rollout_buffer.observations
            )
            assert stored.dtype == np.float32
            assert (stored % 1 != 0).any()
    if kind == "dict":
        assert set(envs.obs_rms) == {"picture", "step", "heat"}
        assert parts["side"] == spaces.Discrete(3)
        assert parts["both"] == spaces.MultiDiscrete([2, 2])


def test_minatar_takes_the_fast_path():
    pytest.importorskip("minatar")
    config = resolve(TrainConfig(env="MinAtar/Breakout-v1", timesteps=2048))
    assert config.goal_return == 4.0
    model = untrained_model(config)
    assert model.not_fast is None
    assert model.observation_space.shape == (400,)


def test_a_game_of_minatar_comes_back_to_where_it_was():
    pytest.importorskip("minatar")
    one, two = (
        make_env("MinAtar/SpaceInvaders-v1", "gymnasium.wrappers.FlattenObservation")
        for _ in range(2)
    )
    first = one.reset(seed=3)[0]
    assert np.array_equal(first, two.reset(seed=3)[0])
    for action in [0, 1, 2, 3, 0, 1, 2, 3]:
        one.step(action)
    assert two.restore(one.episode_records())
    one.reset()
    assert two.restore(one.episode_records())
    assert all(np.array_equal(one.step(3)[0], two.step(3)[0]) for _ in range(8))


@cases(("CartPole-v1", "ppo", 1e5), ("Acrobot-v1", "ppo", 1e6), ("CartPole-v1", "a2c", 5e5))
def test_presets(env, algo, steps):
    config = resolve(TrainConfig(env=env, algo=algo))
    assert config.timesteps == steps
    assert config.goal_return is not None
    assert untrained_model(config).n_envs == config.hyperparameters["n_envs"]


# -- wrong spaces, observations or rewards --------------------------------------------------------------------------
ID = "Faulty-v0"


class Faulty(gym.Env):
    """Four numbers and two actions; ``fault`` says what is wrong."""

    def __init__(self, fault):
        self.fault = fault
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        if fault == "constructor":
            raise TypeError("its own")
        if fault == "sequence":
            self.observation_space = spaces.Sequence(self.observation_space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation("reset shape"), {}

    def step(self, action):
        if self.fault == "own":
            raise ValueError("not enough values to unpack")
        reward = {"None": None, "list": [1.0, 2.0]}.get(self.fault, 1.0)
        return self._observation("step shape"), reward, False, False, {}

    def _observation(self, fault):
        if self.fault == "None observation":
            return None
        if self.fault == "space":
            return self.observation_space
        return np.zeros((1,) if self.fault == fault else self.observation_space.shape, np.float32)


@pytest.fixture
def register():
    options = {"max_episode_steps": 99, "disable_env_checker": True}
    yield lambda fault: gym.register(ID, Faulty, **options, kwargs={"fault": fault})
    gym.registry.pop(ID, None)


def train():
    envs = make_training_envs(ID, None, 2)
    PPO("MlpPolicy", envs, n_steps=8, batch_size=8, n_epochs=1, device="cpu").learn(16)


@cases(
    ("sequence", r"SB3 has no network for its observations, Sequence"),
    ("reset shape", r"shape \(1,\), .* says \(4,\)$"),
    ("None observation", r"shape \(\), "),
    ("space", "no array of numbers"),
    ("step shape", r"shape \(1,\)"),
    ("None", r"reward of its step\(\)"),
    ("list", r"reward of its step\(\)"),
)
def test_a_fault_is_one_sentence_about_the_environment(fault, said, register):
    register(fault)
    refuses(f"^--env {ID}: .*{said}", train)


@cases(("own", ValueError("not enough values to unpack")), ("constructor", TypeError("its own")))
def test_an_error_of_its_own_is_left_alone(fault, error, register):
    register(fault)
    with pytest.raises(type(error), match=f"^{error}"):
        train()


class Old(Faulty):
    """The API of the old Gym, in what ``fault`` names."""

    def reset(self, **given):
        observation, info = super().reset(**given)
        return observation if self.fault == "reset" else (observation, info)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.fault == "step":
            return observation, reward, terminated, info
        return observation, reward, terminated, truncated, info


class Seedless(Old):
    def reset(self):
        return super().reset()


@pytest.mark.parametrize("fault", ["seed", "reset", "step"])
def test_the_api_of_the_old_gym_is_one_sentence_in_the_command_and_the_hook(
    fault, monkeypatch, tmp_path, run_here
):
    monkeypatch.setitem(gym.registry, "Old-v0", None)
    gym.registry.pop("Old-v0")
    old = Seedless if fault == "seed" else Old
    gym.register("Old-v0", old, disable_env_checker=True, kwargs={"fault": fault})
    flags = ["--env", "Old-v0", "--timesteps", "64", "--run-dir", tmp_path / "run"]
    assert "--env Old-v0: in gymnasium's API" in run_here(rl.train.main, *flags, status=2).err
    assert not list(tmp_path.iterdir())
    model = with_entropy_objective(PPO, "adadem")("MlpPolicy", old(fault), device="cpu")
    refuses(r"the environment: in gymnasium's API reset\(.*step\(", model.learn, 64)


def test_a_mistake_in_a_callback_is_not_the_environments():
    def callback(_locals, _globals):
        _first, _second = 1, 2, 3

    model = with_entropy_objective(PPO, "adadem")("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(ValueError, match=r"^too many values") as caught:
        model.learn(64, callback)
    assert not isinstance(caught.value, InputError)


def test_a_video_of_what_gives_no_picture_is_refused_before_any_training(register):
    register("nothing")
    refuses(f"--video: {ID} has no render mode 'rgb_array'", try_out, ID, None, video=True)
    try_out(ID, None)

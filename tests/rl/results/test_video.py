"""Episodes, their video, and the actions of a policy that is only evaluated: those of SB3's predict."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image
from stable_baselines3 import PPO
from support import cases, refuses

from dem_apps.errors import InputError
from rl.config import TrainConfig, resolve
from rl.envs.make import RestorableEpisode, make_training_envs, normalised
from rl.results.evaluator import FINAL, Acting, Episode, Evaluator, play, summary
from rl.results.video import MOST_FRAMES, record_episodes
from rl.training.run import untrained_model

EMPTY = "MiniGrid-Empty-Random-5x5-v0"  # a layout per seed
FLAT = "minigrid.wrappers.FlatObsWrapper"


@pytest.fixture(scope="module")
def model():
    envs = normalised(make_training_envs(EMPTY, FLAT, 2), 0.99)
    return PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, seed=0).learn(64)


EVALUATOR = Evaluator(EMPTY, FLAT, 5, seed=0, purpose=FINAL)


@pytest.fixture(scope="module")
def episodes(model):
    return EVALUATOR.episodes(model, greedy=False)


def test_an_episode_is_what_its_actions_do(model, episodes):
    assert len(episodes) == 5
    env = gym.make(EMPTY)
    for episode in episodes:
        env.reset(seed=episode.seed)
        ends = [env.step(action) for action in episode.actions]
        assert [end[1] for end in ends] == episode.rewards
        assert [end[2] or end[3] for end in ends] == [False] * (episode.length - 1) + [True]
        assert episode.success is None  # MiniGrid does not say
    again = EVALUATOR.episodes(model, greedy=False)
    assert [e.rewards for e in again] == [e.rewards for e in episodes]


def test_noise_of_gsde_is_drawn_for_an_evaluation_and_that_of_training_stays():
    envs = make_training_envs("Pendulum-v1", None, 1)
    model = PPO("MlpPolicy", envs, use_sde=True, n_steps=8, batch_size=8, n_epochs=1, seed=0)
    evaluator, noise = (
        Evaluator("Pendulum-v1", None, 2, seed=0, purpose=FINAL),
        model.policy.action_dist.exploration_mat,
    )
    first = evaluator.episodes(model, greedy=False)
    assert model.policy.action_dist.exploration_mat is noise
    model.policy.reset_noise()
    assert [e.rewards for e in evaluator.episodes(model, greedy=False)] == [
        e.rewards for e in first
    ]


def test_noise_of_gsde_is_one_for_each_environment_under_any_observations():
    class Reward(gym.Env):  # the action itself
        action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

        def __init__(self, kind):
            box = gym.spaces.Box(0, 1, (3,), np.float32)
            self.seen = {"array": np.ones(3, np.float32)}
            self.observation_space = gym.spaces.Dict(array=box)
            if kind == "array":
                self.seen, self.observation_space = self.seen["array"], box

        def reset(self, *, seed=None, options=None):
            return self.seen, {}

        def step(self, action):
            return self.seen, float(action[0]), True, False, {}

    for kind, policy in (("array", "MlpPolicy"), ("dictionary", "MultiInputPolicy")):
        model = PPO(policy, Reward(kind), use_sde=True, n_steps=8, batch_size=8, seed=0)
        episodes = play(model, [Reward(kind) for _ in range(5)], range(5), greedy=False)
        assert len({episode.rewards[0] for episode in episodes}) > 1, kind


def test_summary_of_episodes():
    one, two = Episode(1, [0, 0], [0.0, 1.0]), Episode(2, [0] * 4, [0.0] * 4)
    expected = {"mean_return": 0.5, "std_return": 0.5, "success_rate": 0.5, "mean_length": 3.0}
    assert summary([one, two], EMPTY) == expected


@cases(
    ("CartPole-v1", 475.0, None, 0.5),
    ("Acrobot-v1", -100.0, None, 1.0),  # a return above 0 does not occur there
    ("Own-v0", None, None, None),  # a return does not tell
    (EMPTY, 475.0, None, 1.0),  # only a solved episode has a reward, however late it came
    ("CartPole-v1", 475.0, False, 0.0),
)
def test_what_counts_as_a_success(env_id, goal, said, rate):
    long, short = Episode(1, [0], [480.0], said), Episode(2, [0], [20.0], said)
    assert summary([long, short], env_id, goal)["success_rate"] == rate


def test_a_gif_shows_every_step_of_the_episodes(tmp_path, model, episodes):
    short = [episode for episode in episodes if episode.length < MOST_FRAMES]
    file = tmp_path / "video.gif"
    record_episodes(EVALUATOR, model, short[:2], file, "about")
    with Image.open(file) as video:
        durations = []
        for index in range(video.n_frames):
            video.seek(index)
            durations.append(video.info["duration"])
    assert durations.count(1600) == min(2, len(short))
    # equal frames in a row, such as a move against a wall, may be one frame that stays longer
    steps = sum(episode.length for episode in short[:2])
    assert sum(durations) == 200 * steps + 1600 * min(2, len(short))
    before = file.read_bytes()
    refuses(
        r"gif exists already and is never over",
        record_episodes,
        EVALUATOR,
        model,
        short[:1],
        file,
        "about",
    )
    assert file.read_bytes() == before


def test_an_episode_that_cannot_be_repeated_is_refused(tmp_path, model):
    wrong = Episode(0, [np.int64(0), np.int64(1)], [0.0, 0.5])
    with pytest.raises(InputError, match="differs when its actions are repeated"):
        record_episodes(EVALUATOR, model, [wrong], tmp_path / "video.gif", "about")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "picture", [None, np.zeros((4, 4, 3)), np.zeros((4, 4, 1), np.uint8), [np.zeros((4, 4, 3))]]
)
def test_what_is_no_picture_is_one_sentence(picture, tmp_path, model, monkeypatch):
    monkeypatch.setattr(RestorableEpisode, "render", lambda _: picture)
    with pytest.raises(
        InputError, match=r"--video: the environment's render\(\) has to give \(H, W, 3\) uint8: "
    ):
        record_episodes(
            EVALUATOR, model, [Episode(0, [np.int64(0)], [0.0])], tmp_path / "a.gif", "about"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def doorkey():
    config = TrainConfig(env="MiniGrid-DoorKey-5x5-v0", timesteps=2048, eval_freq=2048)
    return untrained_model(resolve(config)).learn(2048, log_interval=None)


def observations_of(model, count=64):
    """Raw ones of a random policy."""
    generator = np.random.default_rng(0)
    envs = model.get_env().unwrapped
    envs.reset()
    seen = [
        envs.step(generator.integers(0, 7, envs.num_envs))[0] for _ in range(count // envs.num_envs)
    ]
    return np.concatenate(seen)


def predicted(model, raw, greedy):
    """SB3's actions."""
    return model.policy.predict(
        model.get_vec_normalize_env().normalize_obs(raw), deterministic=greedy
    )[0]


@pytest.mark.parametrize("greedy", [True, False])
def test_actions_are_those_of_sb3(doorkey, greedy):
    model, raw = doorkey, observations_of(doorkey)
    act = Acting(model)
    assert act._network is not None
    torch.manual_seed(5)
    ours = [act(raw, greedy) for _ in range(20)]
    torch.manual_seed(5)
    assert np.array_equal(ours, [predicted(model, raw, greedy) for _ in range(20)])
    assert len(np.unique(ours)) > (0 if greedy else 2)


def test_a_column_that_training_has_not_seen_counts(doorkey):
    model, raw = doorkey, observations_of(doorkey, 8)
    unseen = np.delete(np.arange(raw.shape[1]), model.get_vec_normalize_env().columns)[0]
    raw[:, unseen] = 3.0
    weight = model.policy.mlp_extractor.policy_net[0].weight
    with torch.no_grad():  # so that it decides
        weight[:, unseen] = 100.0
    assert np.array_equal(Acting(model)(raw, True), predicted(model, raw, True))

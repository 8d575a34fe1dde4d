"""Zips that SB3 and sb3-contrib open without this package: of rl.export, which act as the run does, and of the hook."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import cases, python, refuses, same
from support.short_training import entry_flags
from support.toy_env import ToyEnv, make

import rl.export
import rl.train
from dem_apps.runtime.checkpoint import load_checkpoint
from rl import save_plain, with_entropy_objective
from rl.config import settings_of_run
from rl.envs.make import make_env
from rl.training.run import untrained_model
from rl.training.state import policy_state, restore_policy, start_from

ENV = "CartPole-v1"
PARTS = ("policy", "normalisation")
SHORT = ("--timesteps", "64", "--hyperparameters.n_steps", "32", "--hyperparameters.n_envs", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of PPO, whose observations are normalised."""
    folder = tmp_path_factory.mktemp("run")
    rl.train.main([*entry_flags(ENV, folder), "--ent-coef", "lin_0.5"])
    return folder / "run"


def test_a_training_begins_with_the_policy_of_a_run_or_of_a_zip(run, tmp_path, capsys):
    rl.export.main(["--run", str(run), "--out", str(tmp_path / "model.zip")])
    policy, moments = (load_checkpoint(run / "checkpoints", "last")[key] for key in PARTS)
    for source, has_moments in ((run, True), (tmp_path / "model.zip", False)):
        model = untrained_model(settings_of_run(run))
        start_from(model, source)
        begun = policy_state(model)
        weights = {name: value for name, value in policy.items() if "entropy" not in name}
        assert all(same(begun["policy"][name], value) for name, value in weights.items())
        assert same(begun["normalisation"], moments) == has_moments
        assert (begun["step"], len(begun["episodes"])) == (0, 0)
    assert "normalisation begins anew" in capsys.readouterr().out
    for loss, normalize in (("adadem-norm", True), ("none", True), ("adadem", False)):
        config = replace(settings_of_run(run), loss=loss)
        if normalize:  # the new objective has a state of its own, or none
            start_from(untrained_model(config), run)
        else:
            plain = {**config.hyperparameters, "normalize": False}
            model = untrained_model(replace(config, hyperparameters=plain))
            refuses("normalises its observations otherwise", start_from, model, run)
    other = ["--env", "Acrobot-v1", *SHORT, "--run-dir", str(tmp_path / "other")]
    refuses(f"--start-from: {run}", rl.train.main, [*other, "--start-from", str(run)])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_sb3_alone_opens_the_zip_and_acts_as_the_run(run, checkpoint, tmp_path, capsys):
    out = tmp_path / "model.zip"
    rl.export.main(["--run", str(run), "--checkpoint", checkpoint, "--out", str(out)])
    assert f"written to {out}" in capsys.readouterr().out
    saved, theirs = load_checkpoint(run / "checkpoints", checkpoint), PPO.load(out)
    ours = untrained_model(settings_of_run(run))
    restore_policy(ours, saved)
    assert type(theirs) is PPO
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32) * [
        2,
        2,
        0.2,
        2,
    ]
    envs = VecNormalize.load(
        str(tmp_path / "model.vecnormalize.pkl"), DummyVecEnv([lambda: make_env(ENV, None)])
    )
    seen = envs.normalize_obs(observations)
    assert np.array_equal(seen, ours.get_vec_normalize_env().normalize_obs(observations))
    assert (type(envs), envs.training) == (VecNormalize, False)
    for deterministic in (True, False):
        torch.manual_seed(0)
        actions = ours.predict(seen, deterministic=deterministic)[0]
        torch.manual_seed(0)
        assert np.array_equal(theirs.predict(seen, deterministic=deterministic)[0], actions)
    assert len(set(actions.tolist())) == 2
    assert theirs.num_timesteps == saved["step"]
    # the schedule's number at that step
    assert theirs.ent_coef == pytest.approx(0.5 * (1 - saved["step"] / 320))


@pytest.mark.parametrize("existing", ["model.zip", "model.vecnormalize.pkl"])
def test_no_file_is_ever_overwritten(existing, run, tmp_path):
    (tmp_path / existing).write_text("mine")
    flags = ["--run", str(run), "--out", str(tmp_path / "model.zip")]
    refuses(f"{existing} exists already and is never overwritten", rl.export.main, flags)
    assert [file.name for file in tmp_path.iterdir()] == [existing]


@cases(
    (
        ["--run", "{run}", "--out", "model.pkl"],
        "--out: expected a file ending in .zip, got model.pkl",
    ),
    (["--run", "{run}", "--out", "/nowhere/m.zip"], "--out: the folder /nowhere does not exist"),
)
def test_mistakes_are_one_sentence(flags, message, run, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    flags = [flag.replace("{run}", str(run)) for flag in flags]
    assert message in run_here(rl.export.main, *flags, status=2).err
    assert not list(tmp_path.iterdir())


def observations(shape):
    return np.random.default_rng(0).normal(size=(50, *shape)).astype(np.float32)


HOOKED = {PPO: "adadem", A2C: "entropy", MaskablePPO: "adadem", RecurrentPPO: "adadem"}


def test_zips_open_without_this_package(tmp_path):
    """In a process that imports nothing of it, policies of every algorithm; of rl.train's: below."""
    models = {
        kind: make(with_entropy_objective(kind, objective)).learn(64)
        for kind, objective in HOOKED.items()
    }
    for kind, model in models.items():
        assert save_plain(model, tmp_path / f"{kind.__name__}.zip") == [
            tmp_path / f"{kind.__name__}.zip"
        ]
    program = (
        "import sys; import numpy as np\n"
        "from stable_baselines3 import A2C, PPO\nfrom sb3_contrib import MaskablePPO, RecurrentPPO\n"
        f"for kind in ({', '.join(kind.__name__ for kind in HOOKED)}):\n"
        "    model = kind.load(kind.__name__ + '.zip', device='cpu')\n"
        "    seen = np.random.default_rng(0).normal(size=(50, *model.observation_space.shape)).astype('float32')\n"
        "    print(model.policy_class.__module__, *model.predict(seen, deterministic=True)[0])\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('rl', 'dem_apps', 'seg')]"
    )
    printed = python("-c", program, folder=tmp_path)
    for model, line in zip(models.values(), printed.splitlines(), strict=True):
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


def test_a_plain_model_is_saved_as_it_is(tmp_path):
    model = make(PPO)
    save_plain(model, tmp_path / "plain.zip")
    assert PPO.load(tmp_path / "plain.zip").num_timesteps == 0

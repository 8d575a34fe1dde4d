"""rl.export: SB3 alone opens the zip, acts as the run does and trains on; the hook reads it back."""

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support.short_training import entry_flags

import rl.export
import rl.train
from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint
from rl.config import settings_of_run
from rl.envs.make import make_env
from rl.training.run import untrained_model
from rl.training.state import restore_policy

ENV = "CartPole-v1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of PPO, whose observations are normalised; A2C and others: tests/rl/hook/test_plain.py."""
    folder = tmp_path_factory.mktemp("run")
    rl.train.main([*entry_flags(ENV, folder), "--ent-coef", "lin_0.5"])
    return folder / "run"


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_sb3_alone_opens_the_zip_and_acts_as_the_run(run, checkpoint, tmp_path, capsys):
    out = tmp_path / "model.zip"
    rl.export.main(["--run", str(run), "--checkpoint", checkpoint, "--out", str(out)])
    assert f"written to {out}" in capsys.readouterr().out
    saved, theirs = load_checkpoint(run / "checkpoints", checkpoint), PPO.load(out)
    ours = untrained_model(settings_of_run(run))
    restore_policy(ours, saved)
    assert type(theirs) is PPO
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32) * [2, 2, 0.2, 2]
    envs = VecNormalize.load(str(tmp_path / "model.vecnormalize.pkl"), DummyVecEnv([lambda: make_env(ENV, None)]))
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
    assert theirs.ent_coef == pytest.approx(0.5 * (1 - saved["step"] / 320))  # the schedule's number at that step


@pytest.mark.parametrize("existing", ["model.zip", "model.vecnormalize.pkl"])
def test_no_file_is_ever_overwritten(existing, run, tmp_path):
    (tmp_path / existing).write_text("mine")
    with pytest.raises(InputError, match=f"{existing} exists already and is never overwritten"):
        rl.export.main(["--run", str(run), "--out", str(tmp_path / "model.zip")])
    assert [file.name for file in tmp_path.iterdir()] == [existing]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run", "{run}", "--out", "model.pkl"], "--out: expected a file ending in .zip, got model.pkl"),
        (["--run", "{run}", "--out", "/nowhere/m.zip"], "--out: the folder /nowhere does not exist"),
    ],
)
def test_mistakes_are_one_sentence(flags, message, run, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    refused = run_here(rl.export.main, *(flag.replace("{run}", str(run)) for flag in flags))
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not list(tmp_path.iterdir())

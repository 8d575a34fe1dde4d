"""rl.export: SB3 alone opens the zip, acts as the run does and trains on; the hook reads it back."""

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO
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
ALGORITHMS = {"ppo": PPO, "a2c": A2C}


@pytest.fixture(scope="module", params=[("ppo", False), ("a2c", True)], ids=lambda p: f"{p[0]} {p[1]}")
def trained(request, tmp_path_factory):
    """Algorithm, whether it was normalised, and the run folder."""
    algo, normalize = request.param
    folder = tmp_path_factory.mktemp("runs")
    rl.train.main([*entry_flags(ENV, folder, algo, normalize), "--ent-coef", "lin_0.5"])
    return algo, normalize, folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rl.train.main(entry_flags(ENV, folder))
    return folder / "run"


def own_model(run, checkpoint="last"):
    config = settings_of_run(run)
    model = untrained_model(config)
    restore_policy(model, load_checkpoint(run / "checkpoints", checkpoint))
    return model


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_sb3_alone_opens_the_zip_and_acts_as_the_run(trained, checkpoint, tmp_path, capsys):
    algo, normalize, run = trained
    out = tmp_path / "model.zip"
    rl.export.main(["--run", str(run), "--checkpoint", checkpoint, "--out", str(out)])
    assert f"written to {out}" in capsys.readouterr().out
    statistics = tmp_path / "model.vecnormalize.pkl"
    assert statistics.is_file() == normalize
    ours, theirs = own_model(run, checkpoint), ALGORITHMS[algo].load(out)
    assert type(theirs) is ALGORITHMS[algo]
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32) * [2, 2, 0.2, 2]
    seen = observations
    if normalize:
        envs = VecNormalize.load(str(statistics), DummyVecEnv([lambda: make_env(ENV, None)]))
        seen = envs.normalize_obs(observations)
        assert np.array_equal(seen, ours.get_vec_normalize_env().normalize_obs(observations))
        assert not envs.training
    for deterministic in (True, False):
        torch.manual_seed(0)
        actions = ours.predict(seen, deterministic=deterministic)[0]
        torch.manual_seed(0)
        assert np.array_equal(theirs.predict(seen, deterministic=deterministic)[0], actions)
    assert len(set(actions.tolist())) == 2
    weights = theirs.policy.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in ours.policy.state_dict().items() if name in weights)
    step = load_checkpoint(run / "checkpoints", checkpoint)["step"]
    assert theirs.num_timesteps == step
    assert theirs.ent_coef == pytest.approx(0.5 * (1 - step / 320))  # a number, which the schedule has at that step


@pytest.mark.parametrize("existing", ["model.zip", "model.vecnormalize.pkl"])
def test_no_file_is_ever_overwritten(existing, run, tmp_path):
    (tmp_path / existing).write_text("mine")
    with pytest.raises(InputError, match=f"{existing} exists already and is never overwritten"):
        rl.export.export(run, "last", tmp_path / "model.zip")
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

"""A run leaves as SB3's own zip and acts there as here; a zip comes in only for who says that its code may run."""

from __future__ import annotations

import pickle
import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support.strangers import Payload

import rl.benchmark
import rl.export
import rl.train
from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from rl.config import TrainConfig, resolve
from rl.envs.make import make_env
from rl.evaluate import read_run
from rl.train import untrained_model
from rl.training.build import restore_policy
from rl.training.sb3_import import start_from_zip

ENV = "CartPole-v1"
ALGORITHMS = {"ppo": PPO, "a2c": A2C}


def arguments(folder: Path, *more: str, algo: str = "ppo", normalize: bool = True) -> list[str]:
    entry = {"n_envs": 2, "n_steps": 32, "policy": "MlpPolicy", "n_timesteps": 128, "normalize": normalize}
    entry |= {"batch_size": 32, "n_epochs": 1, "learning_rate": 0.01} if algo == "ppo" else {}
    (folder / "entry.yaml").write_text(yaml.safe_dump({ENV: entry}))
    return [
        "--env", ENV, "--algo", algo, "--hyperparameters-file", str(folder / "entry.yaml"), "--eval-freq", "64",
        "--eval-episodes", "1", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module", params=[("ppo", True), ("ppo", False), ("a2c", True)], ids=lambda p: f"{p[0]} {p[1]}")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bool, Path]:
    """Algorithm, whether it was normalised, and the run folder."""
    algo, normalize = request.param
    folder = tmp_path_factory.mktemp("runs")
    rl.train.main(arguments(folder, "--run-dir", str(folder / "run"), algo=algo, normalize=normalize))
    return algo, normalize, folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    rl.train.main(arguments(folder, "--run-dir", str(folder / "run")))
    return folder / "run"


def own_model(run: Path, checkpoint: str = "last") -> Any:
    config = read_run(run)
    model = untrained_model(config)
    restore_policy(model, load_checkpoint(run / "checkpoints", checkpoint))
    return model


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_sb3_alone_opens_the_zip_and_acts_as_the_run(
    trained: Any, checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
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
    assert theirs.num_timesteps == load_checkpoint(run / "checkpoints", checkpoint)["step"]


def test_the_files_need_nothing_of_this_package(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.zip"
    rl.export.export(run, "last", out)
    program = (
        "import sys; from stable_baselines3 import PPO; import pickle\n"
        f"PPO.load({str(out)!r}); pickle.loads(open({str(out.with_suffix('.vecnormalize.pkl'))!r}, 'rb').read())\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rl', 'dem_apps', 'seg')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_training_goes_on_in_sb3(run: Path, tmp_path: Path) -> None:
    rl.export.export(run, "last", tmp_path / "model.zip")
    envs = VecNormalize.load(str(tmp_path / "model.vecnormalize.pkl"), DummyVecEnv([lambda: make_env(ENV, None)] * 2))
    envs.training = True
    model = PPO.load(tmp_path / "model.zip", env=envs)
    moments = model.policy.optimizer.state_dict()["state"]
    assert torch.equal(
        moments[0]["exp_avg"], load_checkpoint(run / "checkpoints", "last")["optimizer"]["state"][0]["exp_avg"]
    )
    model.learn(64, reset_num_timesteps=False)


@pytest.mark.parametrize("existing", ["model.zip", "model.vecnormalize.pkl"])
def test_no_file_is_ever_overwritten(existing: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / existing).write_text("mine")
    with pytest.raises(InputError, match=f"{existing} exists and is never overwritten"):
        rl.export.export(run, "last", tmp_path / "model.zip")
    assert [file.name for file in tmp_path.iterdir()] == [existing]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--run: is missing; needed: --run RUN --out OUT"),
        (["--run", "{run}"], "--out: is missing; needed: --run RUN --out OUT"),
        (["--run", "{run}", "--out", "model.pkl"], "--out: expected a file ending in .zip, got model.pkl"),
        (["--run", "{run}", "--out", "/nowhere/m.zip"], "--out: the folder /nowhere does not exist"),
        (["--run", "/nowhere", "--out", "m.zip"], "/nowhere: not a run folder"),
        (
            ["--run", "{run}", "--out", "m.zip", "--checkpoint", "first"],
            "--checkpoint: 'first' is not one of last, best",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], message: str, run: Path, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        run_command(lambda: rl.export.main([flag.replace("{run}", str(run)) for flag in flags]))
    assert left.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# -- and back -----------------------------------------------------------------------------------------------------


def test_a_zip_without_the_flag_is_refused_unopened(tmp_path: Path, capsys: Any) -> None:
    marker, outside = tmp_path / "marker", tmp_path / "outside"
    model = PPO("MlpPolicy", ENV)
    model.evil = Payload(marker)  # type: ignore[attr-defined]
    model.save(tmp_path / "evil.zip")
    with zipfile.ZipFile(tmp_path / "evil.zip", "a") as archive:
        archive.writestr(f"../{outside.name}", "written")
        archive.writestr(str(outside), "written")
    with pytest.raises(SystemExit) as left:
        run_command(
            lambda: rl.train.main(
                arguments(tmp_path, "--start-from-zip", str(tmp_path / "evil.zip"), "--run-dir", str(tmp_path / "run"))
            )
        )
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "evil.zip is refused, since SB3's zip files hold pickled Python objects and opening one runs whatever code"
        in line
    )
    assert line.endswith("add --trust-pickled-code")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["entry.yaml", "evil.zip"]
    PPO.load(tmp_path / "evil.zip")
    assert marker.exists(), "opened by SB3 it does run, so this test can fail"
    assert not outside.exists()


def test_the_flag_is_given_on_the_command_line_and_nowhere_else(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("start_from_zip: x.zip\ntrust_pickled_code: true\n")
    with pytest.raises(InputError, match="trust_pickled_code: can only be given on the command line"):
        rl.train.main(arguments(tmp_path, "--config", str(tmp_path / "mine.yaml")))
    grid = rl.benchmark.BenchmarkConfig(
        envs={ENV: {}},
        arms={"a": {"start_from_zip": "x.zip", "trust-pickled_code": True}},
        folder=str(tmp_path / "grid"),
    )
    with pytest.raises(InputError, match=r"can only be given on the command line of rl\.train"):
        rl.benchmark.grid_jobs(grid)
    with pytest.raises(InputError, match=r"^--trust-pickled-code: belongs to --start-from-zip FILE"):
        resolve(TrainConfig(env=ENV, trust_pickled_code=True))


def test_a_strangers_run_folder_opens_no_zip(run: Path, tmp_path: Path) -> None:
    """Its settings may say that it was started from one, with the flag."""
    marker, copied = tmp_path / "marker", tmp_path / "run"
    (tmp_path / "evil.zip").write_bytes(pickle.dumps(Payload(marker)))
    (tmp_path / "evil.vecnormalize.pkl").write_bytes(pickle.dumps(Payload(marker)))
    subprocess.run(["cp", "-r", str(run), str(copied)], check=True)
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config |= {"start_from_zip": str(tmp_path / "evil.zip"), "trust_pickled_code": True}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    rl.evaluate.main(["--run", str(copied), "--episodes", "1"])
    rl.train.main(["--resume", str(copied)])
    assert not marker.exists()


def test_nor_does_one_without_a_checkpoint(run: Path, tmp_path: Path) -> None:
    """It begins again, with a zip that its settings trust and that whoever resumes it may not."""
    rl.export.export(run, "last", tmp_path / "model.zip")
    marker, copied = tmp_path / "marker", tmp_path / "run"
    copied.mkdir()
    config = yaml.safe_load((run / "config.yaml").read_text())
    config |= {"start_from_zip": str(tmp_path / "evil.zip"), "trust_pickled_code": True}
    with zipfile.ZipFile(tmp_path / "model.zip") as good, zipfile.ZipFile(tmp_path / "evil.zip", "w") as evil:
        for name in good.namelist():
            evil.writestr(name, good.read(name))
    (tmp_path / "evil.vecnormalize.pkl").write_bytes(pickle.dumps(Payload(marker)))
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="--resume: the run starts from a zip once more; add --trust-pickled-code"):
        rl.train.main(["--resume", str(copied)])
    assert not marker.exists()
    with pytest.raises(InputError, match="holds no statistics of VecNormalize"):
        rl.train.main(["--resume", str(copied), "--trust-pickled-code"])
    assert marker.exists(), "with the flag it is opened, so this test can fail"


def start(zip_file: Path, folder: Path, **more: Any) -> Any:
    config = resolve(_parsed(arguments(folder, **more)))
    model = untrained_model(config)
    start_from_zip(model, config.algo, zip_file)
    return model


def _parsed(argv: list[str]) -> TrainConfig:
    return parse_config(TrainConfig, "x", "x", argv)


def test_a_trusted_zip_is_a_start(trained: Any, tmp_path: Path) -> None:
    algo, normalize, run = trained
    rl.export.export(run, "last", tmp_path / "model.zip")
    model, ours = start(tmp_path / "model.zip", tmp_path, algo=algo, normalize=normalize), own_model(run)
    weights = ours.policy.state_dict()
    for name, value in model.policy.state_dict().items():
        if name.startswith("entropy_objective."):
            assert torch.equal(value, torch.full_like(value, 0.5)), "the objective starts afresh"
        else:
            assert torch.equal(value, weights[name])
    saved = load_checkpoint(run / "checkpoints", "last")["optimizer"]["state"]
    now = model.policy.optimizer.state_dict()["state"]
    assert all(torch.equal(now[0][name], value) for name, value in saved[0].items() if isinstance(value, torch.Tensor))
    if normalize:
        mine, its = model.get_vec_normalize_env(), ours.get_vec_normalize_env()
        for name in ("obs_rms", "ret_rms"):
            assert np.array_equal(getattr(mine, name).mean, getattr(its, name).mean)
            assert getattr(mine, name).count == getattr(its, name).count


def test_training_from_a_trusted_zip(run: Path, tmp_path: Path) -> None:
    rl.export.export(run, "last", tmp_path / "model.zip")
    flags = ["--start-from-zip", str(tmp_path / "model.zip"), "--trust-pickled-code"]
    rl.train.main(arguments(tmp_path, *flags, "--run-dir", str(tmp_path / "next")))
    config = yaml.safe_load((tmp_path / "next" / "config.yaml").read_text())
    assert config["trust_pickled_code"] is True
    rl.train.main(["--resume", str(tmp_path / "next")])


def test_a_trusted_zip_that_does_not_fit(run: Path, tmp_path: Path) -> None:
    rl.export.export(run, "last", tmp_path / "model.zip")
    (tmp_path / "no.zip").write_text("no zip")
    PPO("MlpPolicy", "Acrobot-v1").save(tmp_path / "other.zip")
    PPO("MlpPolicy", ENV, policy_kwargs={"net_arch": [3]}).save(tmp_path / "small.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    for name, algo, message in (
        ("gone.zip", "ppo", r"cannot be read as a zip \(No such file"),
        ("no.zip", "ppo", "cannot be read as a zip"),
        ("empty.zip", "ppo", "cannot be loaded as a model of ppo"),
        ("other.zip", "ppo", "has the observation_space"),
        ("small.zip", "ppo", r"mlp_extractor.policy_net.0.weight has shape|names are missing"),
        (".", "ppo", "is no file"),
    ):
        with pytest.raises(InputError, match=f"^--start-from-zip: .*{message}"):
            start(tmp_path / name, tmp_path, algo=algo)
    (tmp_path / "model.vecnormalize.pkl").unlink()
    with pytest.raises(InputError, match="is worth nothing without the statistics"):
        start(tmp_path / "model.zip", tmp_path)
    for bad in (
        b"x",
        pickle.dumps([1]),
        pickle.dumps(VecNormalize(DummyVecEnv([lambda: make_env("Acrobot-v1", None)]))),
    ):
        (tmp_path / "vecnormalize.pkl").write_bytes(bad)
        with pytest.raises(InputError, match=r"vecnormalize\.pkl"):
            start(tmp_path / "model.zip", tmp_path)


def test_what_the_exported_pickles_name(run: Path, tmp_path: Path) -> None:
    """No name of this package, and none that is there for running programs."""
    rl.export.export(run, "last", tmp_path / "model.zip")
    names = [
        str(argument)
        for opcode, argument, _ in pickletools.genops((tmp_path / "model.vecnormalize.pkl").read_bytes())
        if "UNICODE" in opcode.name
    ]
    assert not [name for name in names if name.split(".")[0] in ("rl", "dem_apps", "os", "subprocess", "builtins")]

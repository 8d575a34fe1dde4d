import shutil

import pytest

from seg.config import TrainConfig
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.data.street.demo_pair import write_demo_pair
from seg.models.settings import ModelConfig


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory):
    """A demo pair of a few small pictures."""
    root = tmp_path_factory.mktemp("pair") / "street"
    return write_demo_pair(root, size=(96, 48), source_train=6, target_train=5, target_val=4)


@pytest.fixture
def source(tiny_pair, tmp_path):
    """A private copy of the source domain, which a test may damage."""
    return shutil.copytree(tiny_pair / "gta5", tmp_path / "gta5")


@pytest.fixture
def target(tiny_pair, tmp_path):
    """The target domain, likewise."""
    return shutil.copytree(tiny_pair / "cityscapes", tmp_path / "cityscapes")


@pytest.fixture(scope="session")
def tiny_flags(tiny_pair):
    """Flags that make a training run last seconds."""
    return [
        "--source.root",
        str(tiny_pair / "gta5"),
        "--target.root",
        str(tiny_pair / "cityscapes"),
        "--max-steps",
        "6",
        "--eval-every",
        "3",
        "--log-every",
        "1",
        "--maps",
        "2",
        "--model.encoder",
        "resnet18",
    ]


@pytest.fixture(scope="session")
def tiny_config(tiny_pair):
    """Two steps on the tiny pair, without pictures."""
    return TrainConfig(
        loss="adadem",
        max_steps=2,
        eval_every=2,
        log_every=1,
        maps=0,
        device="cpu",
        source=SourceConfig(str(tiny_pair / "gta5")),
        target=TargetDataConfig(str(tiny_pair / "cityscapes")),
        model=ModelConfig(encoder="resnet18"),
    )

"""Several gloo processes with unequal shards against one process on the joined batch; and what they say at the end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from support import gloo_worker as worker

import dem_apps.runtime.launcher
from dem_apps.errors import InputError
from dem_apps.fused.build_kernel import load_kernel
from dem_apps.runtime.command import run_command

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")

BACKENDS = ["reference", "eager"] + (["compiled"] if load_kernel() is not None else [])


@pytest.fixture(scope="module")
def joined() -> dict[str, Any]:
    """What a single process computes."""
    return {backend: worker.losses_and_gradients(backend, 0, 1) for backend in BACKENDS}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """What each of two, and of three, processes computes; all in one start, since starting takes seconds."""
    folder = tmp_path_factory.mktemp("gloo")
    torch.multiprocessing.spawn(worker.run, ([2, 3], BACKENDS, str(folder)), nprocs=3)
    return {
        world: [torch.load(folder / f"{rank}-of-{world}.pt", weights_only=True) for rank in range(world)]
        for world in (2, 3)
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("world", [2, 3])
def test_processes_agree_with_one(
    backend: str, world: int, joined: dict[str, Any], shared: dict[int, list[Any]]
) -> None:
    last = 2 * worker.STEPS
    for case, expected in joined[backend].items():
        parts = [results[backend][case] for results in shared[world]]
        for index in range(last):
            average = torch.stack([part[index] for part in parts]).mean(0)
            where = f"{case}, step {index // 2}, {'gradient' if index % 2 else 'loss'}"
            torch.testing.assert_close(
                average, expected[index], rtol=0, atol=1e-6, msg=lambda text, where=where: f"{where}: {text}"
            )
        for part in parts:
            for table, single in zip(part[last:], expected[last:], strict=True):
                torch.testing.assert_close(table, single, rtol=0, atol=1e-6)
                assert torch.equal(table, parts[0][-1]), "every process has the same table, bit for bit"


@pytest.mark.parametrize("world", [2, 3])
def test_processes_stop_after_the_same_step(world: int, shared: dict[int, list[Any]]) -> None:
    assert [results["stopping step"] for results in shared[world]] == [3] * world


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Act as one of the processes of a launcher."""

    def act_as(rank: int) -> None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0" / str(rank) / "error.json"))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True, exist_ok=True)

    return act_as


def fail() -> None:
    raise InputError("the file is damaged")


def lose() -> None:
    raise RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:55. This is "
        "typically caused by a remote worker crashing."
    )


def ended(main: Callable[[], None]) -> object:
    with pytest.raises(SystemExit) as end:
        run_command(main)
    return end.value.code


def test_one_of_several_processes_says_what_is_wrong(
    launched: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (1, 0, 2):
        launched(rank)
        assert ended(fail) == 2
    assert capsys.readouterr().err == "error: the file is damaged\n"


def test_a_process_without_a_launcher_always_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert [ended(fail), ended(fail)] == [2, 2]
    assert capsys.readouterr().err == 2 * "error: the file is damaged\n"


def test_a_folder_of_the_launcher_that_cannot_be_written_costs_no_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/proc/none/0/error.json")
    assert ended(fail) == 2
    assert capsys.readouterr().err == "error: the file is damaged\n"


def test_a_lost_connection_is_a_sentence_and_the_launcher_sees_the_culprit_first(
    launched: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(dem_apps.runtime.launcher.time, "sleep", waited.append)
    before = signal.getsignal(signal.SIGTERM)
    for rank in (2, 0):
        launched(rank)
        assert ended(lose) == 1
    signal.signal(signal.SIGTERM, before)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: process 2 of 3 lost its connection to another one (Connection closed by peer [10.0.0.2]:55), which"
    )
    assert "--resume" in line
    assert len(waited) == 2
    assert min(waited) > 1


def test_who_knows_the_reason_silences_who_lost_the_connection(
    launched: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dem_apps.runtime.launcher.time, "sleep", lambda _seconds: None)
    before = signal.getsignal(signal.SIGTERM)
    launched(1)
    assert ended(fail) == 2
    launched(0)
    assert ended(lose) == 1
    signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "error: the file is damaged\n"


def test_other_errors_keep_their_stack_trace(launched: Callable[[int], None]) -> None:
    def crash() -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    launched(0)
    with pytest.raises(RuntimeError, match="mat1"):
        run_command(crash)

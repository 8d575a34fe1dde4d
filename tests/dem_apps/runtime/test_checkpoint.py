"""Checkpoints come back as they were, and never half: not after a crash, a full disk or a damaged file."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dem_apps.errors import InputError
from dem_apps.runtime import checkpoint
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint


def assert_equal(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        assert np.array_equal(actual, expected)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_equal(actual[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
    else:
        assert actual == expected


def round_trip(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    save_checkpoint(folder, "last", state, "1")
    return load_checkpoint(folder, "last")


def test_round_trip_of_nested_values(tmp_path: Path) -> None:
    state = {
        "step": 12,
        "name": "ä b/c",
        "nothing": None,
        "flag": True,
        "rate": 0.1,
        "empty": {},
        "by number": {0: {"moment": torch.randn(3)}, 1: {"moment": torch.randn(2, 2)}},
        "pair": (1, "two", (torch.ones(2), 3.5)),
        "list": [torch.zeros(0), [], {"deep": torch.tensor(3)}],
        "numpy": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "half": torch.randn(4).bfloat16(),
        "bool": torch.tensor([True, False]),
        "view": torch.arange(12.0).view(3, 4).t(),
    }
    assert_equal(round_trip(tmp_path, state), state)


def test_numpy_scalars_become_numbers(tmp_path: Path) -> None:
    assert round_trip(tmp_path, {"a": np.float64(0.5), "b": np.int64(3)}) == {"a": 0.5, "b": 3}


def test_arrays_without_dimensions_keep_their_shape(tmp_path: Path) -> None:
    assert_equal(round_trip(tmp_path, {"a": np.array(3.0)}), {"a": np.array(3.0)})


def test_arrays_can_be_written_to_after_loading(tmp_path: Path) -> None:
    loaded = round_trip(tmp_path, {"a": np.zeros(3), "t": torch.zeros(3)})
    loaded["a"] += 1
    loaded["t"] += 1
    assert loaded["a"].sum() == loaded["t"].sum() == 3


@pytest.mark.parametrize(
    "state",
    [
        {"x/y": torch.zeros(2), "x": {"y": torch.ones(2)}},
        {1: torch.zeros(2), "1": torch.ones(2)},
        {"a": [torch.zeros(2)], "a/0": torch.ones(2)},
    ],
)
def test_keys_that_look_alike_stay_apart(state: dict[Any, Any], tmp_path: Path) -> None:
    assert_equal(round_trip(tmp_path, state), state)


def test_shared_tensors_come_back_as_copies(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    loaded = round_trip(tmp_path, {"a": shared, "b": shared, "c": shared[1:3]})
    assert_equal(loaded, {"a": shared, "b": shared, "c": shared[1:3]})


@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, torch.optim.SGD])
def test_optimiser_states(optimizer_class: Any, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = optimizer_class(
        model.parameters(), lr=0.1, **({"momentum": 0.9} if "SGD" in str(optimizer_class) else {})
    )
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    loaded = round_trip(tmp_path, {"optimizer": optimizer.state_dict()})
    assert_equal(loaded["optimizer"], optimizer.state_dict())
    optimizer_class(model.parameters(), lr=0.5).load_state_dict(loaded["optimizer"])


def test_what_a_checkpoint_cannot_hold_is_refused_before_writing(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "last", {"a": 1}, "1")
    with pytest.raises(TypeError, match=r"cannot hold object at '/x/0'"):
        save_checkpoint(tmp_path, "last", {"x": [object()]}, "2")
    assert load_checkpoint(tmp_path, "last") == {"a": 1}


def test_the_previous_tensor_file_goes(tmp_path: Path) -> None:
    for step in range(3):
        save_checkpoint(tmp_path, "last", {"a": torch.full((2,), float(step))}, f"{step:08d}")
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert load_checkpoint(tmp_path, "last")["a"].tolist() == [2.0, 2.0]
    assert not list(tmp_path.glob("*.tmp"))


def test_checkpoints_do_not_disturb_each_other(tmp_path: Path) -> None:
    names = ["best-miou", "best", "last", "best-miou-aux"]
    for number, name in enumerate(names):
        save_checkpoint(tmp_path, name, {"a": torch.tensor(number)}, "00000001")
    for number, name in enumerate(names):
        assert load_checkpoint(tmp_path, name)["a"] == number


# -- damage -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, "last", {"weights": torch.arange(100.0)}, "00000010")
    return tmp_path


def tensor_file(folder: Path) -> Path:
    (file,) = folder.glob("last*.safetensors")
    return file


def tensor_file_of(folder: Path, name: str) -> str:
    return json.loads((folder / f"{name}.json").read_text())["tensors"]


def one_sentence(folder: Path, name: str = "last") -> str:
    with pytest.raises(InputError) as raised:
        load_checkpoint(folder, name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_missing_checkpoint_names_those_there_are(saved: Path) -> None:
    assert one_sentence(saved, "best").endswith("no checkpoint 'best'; there is last")
    assert one_sentence(saved / "nowhere").endswith("no checkpoint 'last'; there is none")


def test_damaged_tensor_file(saved: Path) -> None:
    content = bytearray(tensor_file(saved).read_bytes())
    content[-5] ^= 1
    tensor_file(saved).write_bytes(content)
    assert "does not match the checksum" in one_sentence(saved)


@pytest.mark.parametrize("kept", [0, 4, 100])
def test_shortened_tensor_file(saved: Path, kept: int) -> None:
    tensor_file(saved).write_bytes(tensor_file(saved).read_bytes()[:kept])
    assert "does not match the checksum" in one_sentence(saved)


def test_missing_tensor_file(saved: Path) -> None:
    tensor_file(saved).unlink()
    assert "tensor file" in one_sentence(saved)


def test_json_cut_short_anywhere(saved: Path) -> None:
    whole = (saved / "last.json").read_bytes()
    for length in range(0, len(whole) - 1, 17):
        (saved / "last.json").write_bytes(whole[:length])
        assert "not a checkpoint" in one_sentence(saved)


def test_a_tensor_file_outside_the_folder_is_not_opened(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.safetensors"
    tensor_file(saved).rename(outside)
    document = json.loads((saved / "last.json").read_text())
    document["tensors"] = str(outside)
    (saved / "last.json").write_text(json.dumps(document))
    assert "no name of a file in its folder" in one_sentence(saved)


# -- a full disk ------------------------------------------------------------------------------------------------

FULL = OSError(errno.ENOSPC, "No space left on device")


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, call: int, error: BaseException) -> None:
    """Make the ``call``-th call of ``owner.function`` raise; a write leaves half of its bytes behind."""
    genuine, calls = getattr(owner, function), iter(range(1000))

    def failing(*arguments: Any) -> Any:
        if next(calls) < call:
            return genuine(*arguments)
        if function == "write_bytes":
            Path(arguments[0]).write_bytes(arguments[1][: len(arguments[1]) // 2])
        raise error

    monkeypatch.setattr(owner, function, failing)


@pytest.mark.parametrize("tag", ["00000020", "00000010"], ids=["next step", "same step again"])
@pytest.mark.parametrize(("owner", "function"), [(checkpoint, "write_bytes"), (os, "replace"), (os, "fsync")])
@pytest.mark.parametrize("call", [0, 1])
def test_a_failed_write_leaves_the_previous_checkpoint(
    tag: str, owner: Any, function: str, call: int, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, owner, function, call, FULL)
        with pytest.raises(InputError, match=r"no space left on the disk .*the previous checkpoint .* is intact"):
            save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, tag)
    assert torch.equal(load_checkpoint(saved, "last")["weights"], torch.arange(100.0))
    assert len(list(saved.iterdir())) == 2, "a full disk has no room for what is of no use"
    save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, tag)
    assert torch.equal(load_checkpoint(saved, "last")["weights"], torch.zeros(100))
    assert len(list(saved.glob("*.safetensors"))) == 1, "what the failed write left behind is gone"


@pytest.mark.parametrize("file", ["last.00000020.*.safetensors.tmp", "last.json.tmp"])
def test_a_disk_that_gives_back_other_bytes_is_noticed(file: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = checkpoint.write_bytes

    def flip(path: Path, content: bytes) -> None:
        genuine(path, bytes([*content[:-1], content[-1] ^ 1]) if path.match(file) else content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_bytes", flip)
        with pytest.raises(InputError) as raised:
            save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")
    assert re.fullmatch(
        rf"{saved}/last\.\S+: what was written came back changed when it was read again; "
        rf"the previous checkpoint {saved}/last\.json is intact; check the disk and run again",
        str(raised.value),
    )
    assert torch.equal(load_checkpoint(saved, "last")["weights"], torch.arange(100.0))
    assert len(list(saved.iterdir())) == 2


def test_what_a_killed_writer_left_goes_with_the_next_save(saved: Path) -> None:
    (saved / "last.00000020.0123abcd.safetensors.tmp").write_bytes(b"half")
    (saved / "last.00000030.0123abcd.safetensors").write_bytes(b"whole, but the pointer was never moved")
    (saved / "last.json.tmp").write_bytes(b"{")
    others = [saved / "lasting.00000001.0123abcd.safetensors", saved / "best.json.tmp"]
    for other in others:
        other.write_bytes(b"of somebody else")
    save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")
    assert {path.name for path in saved.iterdir()} == {
        "last.json", tensor_file_of(saved, "last"), *(other.name for other in others),
    }  # fmt: skip


def test_leftovers_make_room_before_the_write(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = saved / "last.00000030.0123abcd.safetensors"
    orphan.write_bytes(b"large")
    genuine = checkpoint.write_bytes

    def write(path: Path, content: bytes) -> None:
        assert not orphan.exists()
        assert (saved / tensor_file_of(saved, "last")).exists(), "the previous checkpoint stays until the new one is"
        genuine(path, content)

    monkeypatch.setattr(checkpoint, "write_bytes", write)
    save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")


def test_tensors_beside_a_damaged_pointer_are_kept_for_whoever_mends_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved / "last.json").write_text("{")
    fail_at(monkeypatch, checkpoint, "write_bytes", 0, FULL)
    with pytest.raises(InputError, match="no space left"):
        save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")
    assert list(saved.glob("last.00000010.*.safetensors"))


def test_names_are_on_the_disk_in_the_order_in_which_they_are_needed(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the pointer must not be there before the tensors, nor the old tensors gone before it."""
    done: list[str] = []
    replace, fsync, unlink = os.replace, os.fsync, os.unlink

    def record(what: str, result: None) -> None:
        done.append(what)

    monkeypatch.setattr(os, "replace", lambda old, new: record(f"name {Path(new).suffix}", replace(old, new)))
    monkeypatch.setattr(os, "unlink", lambda path: record(f"remove {Path(path).suffix}", unlink(path)))
    monkeypatch.setattr(
        os, "fsync", lambda file: record("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file", fsync(file))
    )
    save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")
    assert done == [
        "file", "file", "name .safetensors", "folder", "file", "file", "name .json", "folder", "remove .safetensors",
    ]  # fmt: skip


def test_a_signal_waits_until_the_checkpoint_is_written(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.replace

    def interrupted(old: Path, new: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        genuine(old, new)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")
    assert torch.equal(load_checkpoint(saved, "last")["weights"], torch.zeros(100))
    assert len(list(saved.iterdir())) == 2


def test_a_reader_that_a_writer_overtakes_reads_the_new_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, overtaken = Path.read_bytes, []

    def overtake(path: Path) -> bytes:
        if not overtaken:
            overtaken.append(path)
            save_checkpoint(saved, "last", {"weights": torch.zeros(100)}, "00000020")
        return genuine(path)

    monkeypatch.setattr(Path, "read_bytes", overtake)
    assert torch.equal(load_checkpoint(saved, "last")["weights"], torch.zeros(100))


def test_a_file_is_replaced_in_one_step_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "eval.json"
    checkpoint.write_atomically(file, b"old")
    with monkeypatch.context() as patch:
        fail_at(patch, checkpoint, "write_bytes", 0, FULL)
        with pytest.raises(
            InputError, match=r"eval\.json: no space left on the disk .*the file that was there is intact"
        ):
            checkpoint.write_atomically(file, b"new")
        fail_at(patch, os, "replace", 0, KeyboardInterrupt())
        patch.setattr(checkpoint, "write_bytes", lambda path, content: path.write_bytes(content) and None)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write_atomically(file, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"eval.json": b"old"}


def test_other_errors_keep_their_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, checkpoint, "write_bytes", 0, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error") as raised:
        save_checkpoint(saved, "last", {"weights": torch.zeros(2)}, "00000020")
    assert not isinstance(raised.value, InputError)


def test_a_first_write_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, checkpoint, "write_bytes", 0, FULL)
    with pytest.raises(InputError, match="nothing was overwritten; free some space and run again"):
        save_checkpoint(tmp_path, "last", {"weights": torch.zeros(2)}, "00000001")


def test_a_disk_that_is_really_full(disk: Callable[[str], Path]) -> None:
    small_disk = disk("64k")
    state = {"weights": torch.randn(4000)}  # 16 kB; the second of 60 kB has no room beside it
    save_checkpoint(small_disk, "last", state, "00000001")
    with pytest.raises(InputError, match=r"no space left on the disk .*the previous checkpoint .* is intact"):
        save_checkpoint(small_disk, "last", {"weights": torch.randn(15000)}, "00000002")
    assert_equal(load_checkpoint(small_disk, "last"), state)
    save_checkpoint(small_disk, "last", {"weights": torch.zeros(4000)}, "00000002")
    assert load_checkpoint(small_disk, "last")["weights"].sum() == 0


def test_a_changed_character_anywhere_in_the_json_is_noticed(tmp_path: Path) -> None:
    """One digit of ``step`` would resume with other metrics."""
    state = {
        "step": 20,
        "rate": 0.125,
        "best": [3, -0.5, None, True],
        "names": {"a": "x", 1: (2, 3)},
        "w": torch.ones(2),
    }
    save_checkpoint(tmp_path, "last", state, "00000020")
    file = tmp_path / "last.json"
    whole = file.read_text()
    accepted = []
    for position, character in enumerate(whole):
        for other in '7e-} "':
            if other == character:
                continue
            file.write_text(whole[:position] + other + whole[position + 1 :])
            try:
                read = load_checkpoint(tmp_path, "last")
            except InputError:
                continue
            accepted.append(character)
            assert torch.equal(read.pop("w"), state["w"])
            assert read == {key: value for key, value in state.items() if key != "w"}
    assert set(accepted) <= {" ", "\n"}
    file.write_text(whole.replace('"step": 20', '"step": 19'))
    assert one_sentence(tmp_path).endswith("does not match its own checksum; the file is damaged")


def test_a_checkpoint_from_before_that_checksum_is_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "last", {"step": 20, "nan": math.nan, "w": torch.ones(2)}, "00000020")
    assert math.isnan(load_checkpoint(tmp_path, "last")["nan"])
    document = json.loads((tmp_path / "last.json").read_text())
    del document["json_sha256"]
    (tmp_path / "last.json").write_text(json.dumps(document))
    assert load_checkpoint(tmp_path, "last")["step"] == 20


def test_files_of_others_beside_a_checkpoint_stay(tmp_path: Path) -> None:
    """Names that begin and end like a checkpoint's own are somebody's copies, and another checkpoint's."""
    names = ["last.safetensors", "last.mine.safetensors", "last.backup.of.monday.safetensors", "last.10.tmp",
             "last.txt.tmp", "last.json.bak", "last.00000010.0123ABCD.safetensors",
             "last.00000010.0123abcd.safetensors.old", "last.best.00000010.0123abcd.safetensors",
             "lastly.00000010.0123abcd.safetensors"]  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("mine")
    for tag in ("1", "2"):
        save_checkpoint(tmp_path, "last", {"weights": torch.ones(2)}, tag)
    assert [name for name in names if not (tmp_path / name).is_file()] == []
    assert len(list(tmp_path.iterdir())) == len(names) + 2

"""Run folders from strangers: what stands in a checkpoint or a log is right or one sentence, and stays where it is."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from support.strangers import Payload

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.run_reader import read_config, read_metrics


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list[int], start: int = 0, stop: int = 4, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


GOOD = safetensors({"w": tensor([1])}, b"\0\0\x80?")
STATE = {"w": {"__tensor__": "w"}}


def write(folder: Path, document: Any, content: bytes = GOOD) -> None:
    """A checkpoint ``last`` whose JSON is ``document`` and whose tensor file has ``content``, with its checksum."""
    (folder / "last.1.safetensors").write_bytes(content)
    if isinstance(document, dict):
        document = json.dumps({"sha256": hashlib.sha256(content).hexdigest(), **document})
    (folder / "last.json").write_text(document)


def sentence(folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        load_checkpoint(folder, "last")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 800
    return str(refused.value)


def pointer(name: Any = "last.1.safetensors", state: Any = None) -> dict[str, Any]:
    return {"tensors": name, "state": STATE if state is None else state}


def test_the_checkpoint_that_the_bad_ones_are_made_of_is_good(tmp_path: Path) -> None:
    write(tmp_path, pointer())
    assert load_checkpoint(tmp_path, "last") == {"w": torch.ones(1)}


@pytest.mark.parametrize(
    "name",
    [
        ["last.1.safetensors"], {"a": 1}, 3, None, True, "", ".", "..", "/etc/passwd", "/dev/zero",
        "../secret.safetensors", "sub/last.1.safetensors", "last\x00.safetensors", "\x1b[2J.safetensors",
        "x" * 300 + ".safetensors", "\ud800.safetensors", "last.json", "C:\\x.safetensors",
    ],
)  # fmt: skip
def test_a_tensor_file_is_a_file_of_the_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path.parent / "secret.safetensors").write_bytes(GOOD)
    write(tmp_path, pointer(name))
    assert "no name of a file in its folder" in sentence(tmp_path)


def test_a_link_is_no_tensor_file(tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_bytes(GOOD)
    write(tmp_path, pointer("link.safetensors"))
    for target in (tmp_path.parent / "secret", "/dev/zero", "/nowhere"):
        (tmp_path / "link.safetensors").unlink(missing_ok=True)
        (tmp_path / "link.safetensors").symlink_to(target)
        assert "is a link, and a checkpoint's tensors are a file in its folder" in sentence(tmp_path)
    (tmp_path / "link.safetensors").unlink()
    os.mkfifo(tmp_path / "link.safetensors")
    assert "no regular file" in sentence(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 7, safetensors(b"{}", length=2**60), safetensors(b"{}", length=2**64 - 1), safetensors(b"[]"),
        safetensors({"w": tensor([2**40, 2**40])}, bytes(4)), safetensors({"w": tensor([2**40], 0, 2**42)}, bytes(4)),
        safetensors({"w": tensor([2**63, 0], 0, 0)}), safetensors({"w": tensor([2**64], 0, 0)}),
        safetensors({"w": tensor([-1])}, bytes(4)),
        safetensors({"w": tensor([1]), "v": tensor([1])}, bytes(4)), safetensors({"w": tensor([1], 4, 8)}, bytes(8)),
        safetensors({"w": tensor([1], dtype="X9")}, bytes(4)), safetensors({"w": tensor([8], dtype="F4")}, bytes(4)),
        safetensors({"__metadata__": {"a": 3}}), safetensors(b"[" * 100_000),
        safetensors({"other": tensor([1])}, bytes(4)),
    ],
)  # fmt: skip
def test_tensors_that_are_none_take_no_memory(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, pointer(), content)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "not a checkpoint of this program" in sentence(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100_000  # KiB


def test_a_tensor_file_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, pointer())
    with open(tmp_path / "last.1.safetensors", "r+b") as opened:
        opened.truncate(1 << 42)
    assert "do not fit into this machine's memory" in sentence(tmp_path)


def test_a_pickle_is_no_checkpoint(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    write(tmp_path, pointer(), pickle.dumps(Payload(marker)))
    assert "not a checkpoint of this program" in sentence(tmp_path)
    (tmp_path / "last.json").write_bytes(pickle.dumps(Payload(marker)))
    assert "not a checkpoint of this program" in sentence(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "null", "3", '"text"', "{", "[" * 100_000, '{"tensors": ' + "9" * 5000 + "}", "\x00",
        {"tensors": "last.1.safetensors"}, pointer(state=[1]), pointer(state=3), pointer(state="x"),
        pointer(state={"w": {"__tensor__": "gone"}}), pointer(state={"w": {"__tensor__": [1]}}),
        pointer(state={"w": {"__array__": {}}}), pointer(state={"__pairs__": [[1]]}), pointer(state={"__pairs__": 3}),
        pointer(state={"__pairs__": [[[1], 2]]}), pointer(state={"__tuple__": 3}), pointer(state={"__tuple__": [1]}),
        {**pointer(), "sha256": None}, {**pointer(), "sha256": ["x"]},
    ],
)  # fmt: skip
def test_json_with_wrong_types_anywhere(document: Any, tmp_path: Path) -> None:
    write(tmp_path, document)
    sentence(tmp_path)


def test_nan_is_never_saved_over_a_good_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "last", {"w": torch.ones(2)}, "1")
    for bad in (torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf], dtype=torch.bfloat16)):
        with pytest.raises(
            NotFiniteError, match=r"'/deep/w' holds NaN or infinite .* previous checkpoint .* is intact"
        ):
            save_checkpoint(tmp_path, "last", {"deep": {"w": bad}}, "2")
    assert load_checkpoint(tmp_path, "last")["w"].tolist() == [1.0, 1.0]
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(NotFiniteError, match="nothing was overwritten"):
        save_checkpoint(tmp_path, "best", {"w": torch.full((1,), torch.nan)}, "2")


# -- writing ------------------------------------------------------------------------------------------------------


def test_saving_follows_no_link(tmp_path: Path) -> None:
    outside, folder = tmp_path / "bashrc", tmp_path / "checkpoints"
    outside.write_text("mine")
    folder.mkdir()
    state = {"w": torch.ones(2)}
    save_checkpoint(folder, "last", state, "1")
    (name,) = (file.name for file in folder.glob("*.safetensors"))
    for link in ("last.json", "last.json.tmp", name.replace(".safetensors", ".tmp")):
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(outside)
    save_checkpoint(folder, "last", state, "1")
    assert outside.read_text() == "mine"
    assert load_checkpoint(folder, "last").keys() == state.keys()


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    run = RunFolder.create(tmp_path / "run", {"loss": "adadem"}, 0, "cpu")
    for step in (1, 2, 3):
        run.log(step, loss=1.0)
    run.close()
    return run.path


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "entropy_maps", "videos/last.gif", "eval.json.tmp"])
def test_a_run_folder_with_a_way_out_is_not_continued(name: str, ran: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (ran / name).parent.mkdir(exist_ok=True)
    (ran / name).unlink(missing_ok=True)
    (ran / name).symlink_to(outside)
    with pytest.raises(InputError, match=r"is a link that leads out of .*run, so that"):
        RunFolder.resume(ran, 1)
    assert not outside.exists()


def test_a_link_within_the_run_folder_is_no_way_out(ran: Path) -> None:
    (ran / "newest").symlink_to(ran / "metrics.jsonl")
    RunFolder.resume(ran, 2).close()
    assert [line["step"] for line in read_metrics(ran)] == [1, 2]


# -- logs and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["3", "[]", "null", "{}", '{"step": "x"}', '{"step": 1.5}', "{", "[" * 9999, "9" * 5000]
)
def test_a_broken_line_of_the_log(line: str, ran: Path) -> None:
    good = (ran / "metrics.jsonl").read_text()
    (ran / "metrics.jsonl").write_text(f"{good}{line}")
    assert [read["step"] for read in read_metrics(ran)] == [1, 2, 3], "a kill may leave anything at the end"
    (ran / "metrics.jsonl").write_text(f"{line}\n{good}")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: "):
        read_metrics(ran)
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: "):
        RunFolder.resume(ran, 2)


def test_a_text_in_the_log_may_hold_any_character(ran: Path) -> None:
    run = RunFolder.resume(ran, 3)
    run._metrics.write('{"step": 4, "alarm": "a\u2028b\x85c"}\n')
    run.close()
    assert [line["step"] for line in read_metrics(ran)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.system ['touch {marker}']", "a: &a [*a]", "[" * 9999, "- 1"]
)
def test_settings_that_are_none(text: str, ran: Path, tmp_path: Path) -> None:
    (ran / "config.yaml").write_text(text.replace("{marker}", str(tmp_path / "marker")))
    with pytest.raises(InputError, match=r"config\.yaml: "):
        read_config(ran)
    assert not (tmp_path / "marker").exists()

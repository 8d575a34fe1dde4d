"""Files are read as plain values or pixels, run nothing, appear whole, and never replace what a user made."""

import errno
import os
import re
import resource

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from support import png, refuses

from dem_apps.errors import InputError
from dem_apps.runtime import files
from dem_apps.runtime.documents import parsed_json, parsed_yaml, read_json, read_yaml, shaped
from dem_apps.runtime.files import new_folder, new_run_dir, sweep, whole_file, write_atomically
from dem_apps.runtime.images import opened_image
from dem_apps.runtime.metrics_info import MetricsInfo, Score

TAGS = [
    "!!python/object/apply:os.system ",
    "!!int ",
    "!!timestamp ",
    "!!bool ",
    "!!binary ",
    "!!map ",
    "<<: ",
]
PIECES = st.sampled_from([*TAGS, *"{}[]:-&*'\"\t\n=?", ": ", "- ", "&a ", "*a ", "1:1", "0x_"])


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join)))
@example("[" * 100_000)
def test_any_text_is_plain_values_or_one_sentence(text):
    for parse in (parsed_yaml, parsed_json):
        try:
            parse(text, "a.file")
        except InputError as error:
            sentence = str(error)
        else:
            continue
        assert sentence.startswith("a.file: is not valid ")
        assert "\n" not in sentence


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for read in (read_json, read_yaml):
        refuses(r"none: cannot be read \(", read, tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xe9")
    refuses(r"latin: cannot be read \('utf-8' codec", read_yaml, tmp_path / "latin")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"a": [1, None]}))
    assert read_yaml(tmp_path / "a.yaml") == {"a": [1, None]}


def test_what_a_plain_value_of_yaml_and_of_json_is():
    for text, value in (
        ("1e-3", 0.001),
        ("-5E3", -5000.0),
        ("1.5", 1.5),
        ("0x1f", 31),
        ("e5", "e5"),
    ):
        assert parsed_yaml(text, "") == value
    assert parsed_json('{"a": NaN, "b": [-Infinity]}', "") == {"a": None, "b": [None]}


def test_only_a_regular_file_inside_the_folder_is_opened(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (folder / "link.json").symlink_to("../secret.json")
    (folder / "link").symlink_to("..")
    os.mkfifo(folder / "pipe.json")
    (folder / "device.json").symlink_to("/dev/zero")
    for name in ("link.json", "link/secret.json"):
        assert read_json(folder / name) == {}
        refuses(
            r"cannot be read \(a link to a file outside .*run\)$", read_json, folder / name, folder
        )
    for name in ("pipe.json", "device.json", "."):
        refuses(r"cannot be read \(not a regular file\)$", read_json, folder / name)


def test_a_document_has_the_shape_that_is_declared():
    whole = {
        "heading": "Racing",
        "scores": [{"key": "lap", "title": "lap time"}],
        "settings": ["car"],
    }
    expected = MetricsInfo("Racing", scores=(Score("lap", "lap time"),), settings=("car",))
    assert shaped(MetricsInfo, whole, "a.json") == expected
    for change, why in (
        ({"heading": 5}, "a.json: 'heading' is of the wrong type (int)"),
        ({"scores": {}}, "a.json: 'scores' is of the wrong type (dict)"),
        (
            {"scores": [{"key": "lap"}]},
            "a.json, scores: Score.__init__() missing 1 required positional argument: ",
        ),
        ({"scores": [5]}, "a.json, scores: expected a mapping, found int"),
        (
            {"scores": [{"key": "lap", "title": "", "digits": 1e9}]},
            "a.json, scores: 'digits' is of the wrong type",
        ),
        (
            {"scores": [{"key": "lap", "title": "", "better": "faster"}]},
            "'better' is of the wrong type",
        ),
        ({"settings": [None]}, "'settings' is of the wrong type"),
        (
            {"headin": ""},
            "a.json: MetricsInfo.__init__() got an unexpected keyword argument 'headin'",
        ),
    ):
        refuses(re.escape(why), shaped, MetricsInfo, whole | change, "a.json")


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    file = tmp_path / "a"
    write_atomically(file, b"old")
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refuses(
        "no space left on the disk .*; nothing was overwritten",
        write_atomically,
        file,
        b"newer",
    )
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_new_file_never_overwrites(tmp_path):
    write_atomically(tmp_path / "a", b"mine", "--out")
    write_atomically(tmp_path / "a", b"mine", "--out")  # as a killed command may have left it
    refuses(
        r"--out: .*a exists already and is never overwritten",
        write_atomically,
        tmp_path / "a",
        b"x",
        "--out",
    )
    assert (tmp_path / "a").read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_drafts_of_killed_processes_are_swept_and_those_in_use_are_not(tmp_path):
    (tmp_path / ".dem-apps-0.tmp" / "new").mkdir(parents=True)
    (tmp_path / ".dem-apps-0.tmp" / "new" / "a").touch()
    (tmp_path / ".mine.tmp").mkdir()
    pipe = tmp_path / ".dem-apps-1.tmp"  # in a folder of everybody's, such as /tmp
    os.mkfifo(pipe)
    with new_folder(tmp_path / "new", "--out") as used, whole_file(tmp_path / "a") as also:
        also.touch()
        sweep(tmp_path)
        kept = [tmp_path / ".mine.tmp", pipe, used.parent, also.parent]
        assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_folder_appears_whole(tmp_path):
    with new_folder(tmp_path / "deep" / "new", "--out") as inside:
        (inside / "sub").mkdir()
        (inside / "sub" / "a").write_text("a")
        assert not (tmp_path / "deep" / "new").exists()
    assert (tmp_path / "deep" / "new" / "sub" / "a").read_text() == "a"
    again = new_folder(tmp_path / "deep" / "new", "--out")
    refuses(r"holds files already, which are never overwritten", again.__enter__)
    with pytest.raises(KeyError), new_folder(tmp_path / "other", "--out") as inside:  # noqa: PT012
        (inside / "a").write_text("a")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_dir() == tmp_path / "own"
    monkeypatch.delenv("DEM_APPS_CACHE")
    assert files.cache_dir() == tmp_path / "dem-apps"


def test_two_runs_of_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files.time, "strftime", lambda _: "now")
    assert [new_run_dir("seg", "a").name for _ in range(3)] == [
        "seg-a-now",
        "seg-a-now-2",
        "seg-a-now-3",
    ]


def refused(file):
    with pytest.raises(InputError) as raised, opened_image(file) as picture:
        picture.load()
    assert str(raised.value).startswith(f"{file}: ")
    return str(raised.value)


@pytest.mark.parametrize("size", [(50_000, 50_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_that_claims_to_be_enormous_is_not_unpacked(size, tmp_path):
    file = tmp_path / "bomb.png"
    file.write_bytes(png(*size, bytes(1000)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert " pixels" in refused(file)
    # KiB; 20,000 x 20,000 has 1,200,000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100_000


def test_postscript_is_no_image_whatever_its_name(tmp_path, monkeypatch):
    marker, programs = tmp_path / "marker", tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    file = tmp_path / "photo.png"
    file.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with Image.open(file) as picture, pytest.raises(Exception):  # noqa: B017, PT011 (what our way around avoids)
        picture.load()
    assert marker.exists(), "Pillow alone starts Ghostscript here, so this test can fail"
    marker.unlink()
    assert "in none of the formats PNG, JPEG" in refused(file)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"BM" + bytes(20), b"\xff\xd8\xff\xe0" * 9]
)
def test_damaged_files_are_one_sentence(content, tmp_path):
    (tmp_path / "a.png").write_bytes(content)
    assert "the image cannot be read" in refused(tmp_path / "a.png")

"""Image files from others: pixels of a few formats, or one sentence; nothing is run or unpacked."""

import os
import resource

import pytest
from PIL import Image
from support.pictures import png

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image


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
    assert "pixels; make it smaller first" in refused(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100_000  # KiB; 20,000 x 20,000 has 1,200,000


def test_postscript_is_no_image_whatever_its_name(tmp_path, monkeypatch):
    marker, programs = tmp_path / "marker", tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    file = tmp_path / "photo.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    with Image.open(file) as picture, pytest.raises(Exception):  # noqa: B017, PT011 (what our way around avoids)
        picture.load()
    assert marker.exists(), "Pillow alone starts Ghostscript here, so this test can fail"
    marker.unlink()
    assert "in none of PNG, JPEG" in refused(file)
    assert not marker.exists()


def test_a_picture_of_a_wrong_checksum_is_damaged(tmp_path):
    whole = png(8, 8, bytes(8 * 25))
    (tmp_path / "a.png").write_bytes(whole[:-16] + b"none" + whole[-12:])  # of the pixels, before the end's 12 bytes
    assert "bad header checksum in b'IDAT'" in refused(tmp_path / "a.png")


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"BM" + bytes(20), b"\xff\xd8\xff\xe0" * 9])
def test_damaged_files_are_one_sentence(content, tmp_path):
    (tmp_path / "a.png").write_bytes(content)
    assert "the image cannot be read" in refused(tmp_path / "a.png")

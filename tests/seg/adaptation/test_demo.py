"""What the demo of seg.adapt keeps in the cache is whole when it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from seg.adaptation import demo


@pytest.mark.parametrize("damage", ["nothing", "an image", "an empty label", "both folders"])
def test_foggy_pictures_are_drawn_anew_where_one_is_missing(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would adapt to fewer images without a word."""
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path))
    monkeypatch.setattr(demo, "IMAGES", 2)
    folders = demo.foggy_target()
    before = {file: file.read_bytes() for folder in folders for file in folder.iterdir()}
    assert len(before) == 4
    if damage == "an image":
        (folders[0] / "001.png").unlink()
    elif damage == "an empty label":
        (folders[1] / "000.png").write_bytes(b"")
    elif damage == "both folders":
        for file in before:
            file.unlink()
    assert demo.foggy_target() == folders
    assert {file: file.read_bytes() for folder in folders for file in folder.iterdir()} == before
    assert [folder.name for folder in (tmp_path / "adapt").iterdir()] == [folders[0].parent.name]

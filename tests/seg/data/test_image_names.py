"""Names of outputs: derived from the image, and unique."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from seg.data.files import flat_names, output_names

#: Few letters, so that names collide in every way: by stem, suffix, case, number behind them, length.
PART = st.sampled_from(["a", "A", "a_2", "b", "0", "0.png", "a_0", "val", "é" * 120, "é" * 119 + "x", "a" * 240])
SUFFIX = st.sampled_from([".png", ".jpg", ".PNG"])
IMAGE = st.builds(
    lambda folders, stem, suffix: "/".join([*folders, stem + suffix]), st.lists(PART, max_size=3), PART, SUFFIX
)
IMAGES = st.lists(IMAGE, min_size=1, max_size=12, unique=True)


@given(IMAGES)
def test_flat_names_share_no_file(images: list[str]) -> None:
    names = flat_names(images)
    entries = [entry.lower() for name in names for entry in (name, f"{name}.png")]
    assert len(set(entries)) == 2 * len(images)
    assert not any("/" in name for name in names)
    assert all(len(os.fsencode(f"{name}.png.tmp")) <= 255 for name in names)


@given(IMAGES)
def test_names_of_an_export_share_no_file(images: list[str]) -> None:
    names = output_names([Path(image) for image in images])
    assert len({str(name).lower() for name in names}) == len(images)
    assert all(len(os.fsencode(f"{name.name}_pred_labelIds.png.tmp")) <= 255 for name in names)


def test_a_stem_of_its_own_is_the_name() -> None:
    assert flat_names(["val/a/0.png", "val/b/0.png", "val/b/1.png"]) == ["val_a_0", "val_b_0", "1"]

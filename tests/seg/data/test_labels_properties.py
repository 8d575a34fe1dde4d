"""Label images in every mode that people save them in: the right ids or one sentence, never other ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.pictures import png
from support.refusals import refuses

from seg.data.read import read_index_image
from seg.data.read_images import read_image

IDS = np.random.default_rng(0).integers(0, 2, (5, 7)).astype(np.uint8)
GREY, PALETTE = Image.fromarray(IDS), Image.fromarray(IDS)
PALETTE.putpalette([9, 9, 9, 0, 200, 0])
MODES = {
    "1": Image.fromarray(IDS > 0), "L": GREY, "P": PALETTE, "LA": GREY.convert("LA"),
    "I;16": Image.fromarray(IDS.astype(np.uint16)), "RGB": GREY.convert("RGB"), "RGBA": GREY.convert("RGBA"),
}  # fmt: skip


def packed_png(ids, depth, colour, palette=b""):
    """A PNG of (H, W) ids of ``depth`` bits."""
    bits = np.unpackbits(ids[..., None], axis=2)[..., 8 - depth :].reshape(len(ids), -1)
    rows = b"".join(b"\0" + line.tobytes() for line in np.packbits(bits, axis=1))
    return png(ids.shape[1], len(ids), rows, depth, colour, palette)


@pytest.mark.parametrize(
    ("mode", "suffixes"),
    [("1", "png tif bmp"), ("L", "png tif gif"), ("P", "png tif gif"), ("LA", "png tif"), ("I;16", "png tif")],
)
def test_ids_of_every_mode(mode, suffixes, tmp_path):
    for suffix in suffixes.split():
        MODES[mode].save(tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(read_index_image(tmp_path / f"a.{suffix}"), IDS, suffix)


@pytest.mark.parametrize(("mode", "suffix"), [("RGB", "png"), ("RGBA", "png"), ("RGB", "tif"), ("L", "jpg")])
def test_what_holds_no_ids_is_refused(mode, suffix, tmp_path):
    MODES[mode].save(tmp_path / f"a.{suffix}")
    refuses(f"a.{suffix}", read_index_image, tmp_path / f"a.{suffix}")


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_png_of_any_bits(tmp_path, depth, width, seed):
    """Palettes and grey of 1 to 16 bits hold ids, although decoders spread grey of 2 and 4 bits over 0 to 255."""
    ids = np.random.default_rng(seed).integers(0, 2**depth, (3, width)).astype(np.uint8)
    file = tmp_path / "label.png"
    file.write_bytes(packed_png(ids, depth, 3, bytes(range(255, -1, -1)) * 3))
    assert np.array_equal(read_index_image(file), ids)
    file.write_bytes(packed_png(ids, depth, 0))
    assert np.array_equal(read_index_image(file), ids)
    Image.fromarray(ids.astype(np.uint16)).save(file)
    assert np.array_equal(read_index_image(file), ids)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_a_picture_of_any_mode_is_rgb(mode, tmp_path):
    MODES[mode].save(tmp_path / "photo.png")
    image = read_image(tmp_path / "photo.png").values
    assert (image.dtype, image.shape) == (np.uint8, (5, 7, 3))

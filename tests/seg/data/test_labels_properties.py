"""Label images in every mode and palette that Pillow can write: the right ids or one sentence, never other ids."""

import io
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.pictures import png

from dem_apps.errors import InputError
from seg.data.read import read_index_image
from seg.data.read_images import read_image

NUMBERS = {"I": np.int32, "I;16": np.uint16, "I;16B": np.dtype(">u2"), "F": np.float32}
MODES = (*NUMBERS, "1", "L", "P", "PA", "LA", "La", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
FORMATS = ("PNG", "TIFF", "BMP", "GIF", "WEBP", "JPEG", "PPM", "ICO", "TGA", "PCX", "SGI")


def outcome(call):
    """The value returned, or the one line of a refusal."""
    try:
        return call(), None
    except InputError as refused:
        sentence = str(refused)
    assert "\n" not in sentence
    return None, sentence


@st.composite
def files(draw):
    """Ids, the content of a file that Pillow writes of them in some mode, and its format."""
    shape, top = draw(st.tuples(st.integers(1, 9), st.integers(1, 9))), draw(st.sampled_from([1, 3, 15, 33, 255]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ids = random.integers(0, top + 1, shape).astype(np.uint8)
    mode, kind = draw(st.sampled_from(MODES)), draw(st.sampled_from(FORMATS))
    picture = Image.fromarray(ids.astype(NUMBERS.get(mode, np.uint8)))
    options = draw(st.sampled_from([{}, {"optimize": True}, {"transparency": 0}, {"compress_level": 0}, {"bits": 4}]))
    written = io.BytesIO()
    try:
        if mode in ("P", "PA"):
            picture.putpalette(draw(st.sampled_from([bytes(768), random.bytes(768)])))
        elif mode not in NUMBERS:
            picture = picture.convert("LA" if mode == "La" else "RGB")
        picture = picture if mode in NUMBERS else picture.convert(mode)
        picture.save(written, kind, **(options if kind == "PNG" else {}))
        Image.open(written)  # Pillow 10 writes icons without a single picture
    except (OSError, ValueError, KeyError, TypeError, SystemError, struct.error):
        written, kind = io.BytesIO(), "PNG"
        Image.fromarray(ids).convert("RGB").save(written, kind)
    return ids, written.getvalue(), kind


def packed_png(ids, depth, colour, palette=b""):
    """A PNG of (H, W) ids of ``depth`` bits."""
    bits = np.unpackbits(ids[..., None], axis=2)[..., 8 - depth :].reshape(len(ids), -1)
    rows = b"".join(b"\0" + line.tobytes() for line in np.packbits(bits, axis=1))
    return png(ids.shape[1], len(ids), rows, depth, colour, palette)


@given(files())
def test_a_label_of_any_mode_has_its_ids_or_is_refused(tmp_path, case):
    ids, content, kind = case
    (tmp_path / "label.png").write_bytes(content)
    read, sentence = outcome(lambda: read_index_image(tmp_path / "label.png"))
    if sentence is not None:
        assert sentence.startswith(str(tmp_path / "label.png"))
        assert kind not in ("PNG", "TIFF") or Image.open(io.BytesIO(content)).mode not in ("1", "L", "LA", "P", "I;16")
        return
    with Image.open(io.BytesIO(content)) as picture:  # "1" is made by dithering, and a GIF of the ids that it holds
        expected = np.asarray(picture).astype(np.uint8) if picture.mode == "1" or kind == "GIF" else ids
        clear = picture.info.get("transparency")
    assert read.dtype == np.uint8
    assert np.array_equal(read, np.where(expected == clear, 255, expected) if isinstance(clear, int) else expected)


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


@given(files())
def test_a_picture_of_any_mode_is_rgb_or_refused(tmp_path, case):
    ids, content, _ = case
    (tmp_path / "photo.png").write_bytes(content)
    image, sentence = outcome(lambda: read_image(tmp_path / "photo.png").values)
    if sentence is None:
        assert image.dtype == np.uint8
        assert image.shape == (*ids.shape, 3)

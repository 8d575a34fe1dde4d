"""An image is opened once to be read: by us to see what it is, and by the library that decodes it."""

import builtins
import io
import pathlib

import numpy as np
import pytest
from PIL import Image
from support.scenes import rasterio, write_scene

from seg.data.datasets import SegmentationDataset
from seg.data.labels import load_classes
from seg.data.pixel_format import RGB, PixelFormat
from seg.data.read_images import read_header, read_image
from seg.data.read_labels import read_label

IDS = np.eye(8, 6, dtype=np.uint8)
PICTURE = np.repeat(IDS[..., None], 3, axis=2) * np.uint8(90)
DEEP = PixelFormat(1, "uint16", (0.0,), (1.0,), (0, 0, 0))
WRITE = {
    "a.png": lambda file: Image.fromarray(PICTURE).save(file),
    "a.jpg": lambda file: Image.fromarray(PICTURE).save(file),
    "deep.png": lambda file: Image.fromarray(IDS.astype(np.uint16) * 300).save(file),
    "a.tif": lambda file: write_scene(file, PICTURE),
    "turned.tif": lambda file: Image.fromarray(PICTURE).save(file, exif={0x0112: 6}),
}


@pytest.fixture
def opens(monkeypatch):
    """The names of the files that are opened, by Python, Pillow or rasterio."""
    names = []

    def counted(original):
        def opened(file, *arguments, **options):
            if isinstance(file, (str, pathlib.Path)):
                names.append(pathlib.Path(file).name)
            return original(file, *arguments, **options)

        return opened

    monkeypatch.setattr(io, "open", counted(io.open))
    monkeypatch.setattr(builtins, "open", counted(builtins.open))
    monkeypatch.setattr(rasterio, "open", counted(rasterio.open))
    return names


@pytest.mark.parametrize("name", WRITE)
def test_an_image_is_opened_by_us_and_its_library(name, tmp_path, opens):
    file = tmp_path / name
    WRITE[name](file)
    opens.clear()
    wanted = DEEP if name == "deep.png" else RGB
    read_header(file)
    assert 1 <= opens.count(name) <= 2
    opens.clear()
    read_image(file, wanted)
    assert 1 <= opens.count(name) <= 2


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_sample_opens_its_image_and_its_label_twice_at_most(suffix, tmp_path, opens):
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    label = tmp_path / "labels" / f"a.{suffix}"
    Image.fromarray(PICTURE).save(tmp_path / "images" / "a.png")
    Image.fromarray(IDS).save(label)
    classes = load_classes("a,b")
    dataset = SegmentationDataset(tmp_path, "folders", "train", labelled=True, classes=classes)
    opens.clear()
    np.testing.assert_array_equal(dataset[0].label, IDS)
    assert len(opens) <= 4
    opens.clear()
    read_label(label, classes)
    assert 1 <= opens.count(label.name) <= 2


def test_files_beside_a_tiff_are_not_opened(tmp_path):
    """An overview or a mask beside it may be a description that names any file of the machine."""
    file = tmp_path / "a.tif"
    write_scene(file, np.full((16, 16, 3), 200, np.uint8))
    band = '<VRTRasterBand dataType="Byte" band="1"/>'
    text = f'<VRTDataset rasterXSize="16" rasterYSize="16">{band}</VRTDataset>'
    for suffix in (".ovr", ".msk"):
        (tmp_path / f"a.tif{suffix}").write_text(text)
    image = read_image(file)
    assert image.valid is None
    assert (image.values == 200).all()

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from dem_apps.errors import InputError
from seg.data.labels import CITYSCAPES_CLASSES, IGNORE_INDEX, chosen_color, id_tables, load_classes, named_classes

CONFIGS = Path(__file__).parents[3] / "configs/seg/classes"
GREY = [9, 9, 9]


@pytest.fixture
def write(tmp_path):
    def write(document) -> str:
        file = tmp_path / "classes.yaml"
        file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return str(file)

    return write


def test_a_file_names_classes_colours_and_ids(write):
    rows = [{"name": "a", "color": [1, 2, 3]}, {"name": "b", "color": GREY, "id": 40}, {"name": "c", "color": GREY}]
    classes = load_classes(write({"classes": rows, "ignored": [7, 5]}))
    assert classes.names == ("a", "b", "c")
    assert classes.colors[0] == (1, 2, 3)
    assert classes.ids == (0, 40, 2)
    assert classes.ignored == (5, 7)
    assert classes.to_ids()[:4].tolist() == [0, 40, 2, 0]


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_files_in_the_repository_load(file):
    assert len(load_classes(str(file))) >= 2


def test_the_16_classes_of_synthia_are_those_of_cityscapes_without_three():
    classes = load_classes(str(CONFIGS / "synthia16.yaml"))
    kept = [i for i, name in enumerate(CITYSCAPES_CLASSES.names) if name not in ("terrain", "truck", "train")]
    for field in ("names", "colors", "ids"):
        assert getattr(classes, field) == tuple(getattr(CITYSCAPES_CLASSES, field)[i] for i in kept)


def test_255_classes_fit_into_a_label_image(write):
    rows = [{"name": f"class {i}", "color": GREY} for i in range(255)]
    table, known = id_tables(load_classes(write({"classes": rows})))
    assert table.tolist() == [*range(255), IGNORE_INDEX]
    assert known.all()


def test_own_ids_map_to_train_ids_and_the_rest_is_unknown(write):
    rows = [{"name": "a", "color": GREY, "id": 3}, {"name": "b", "color": GREY, "id": 1}]
    table, known = id_tables(load_classes(write({"classes": rows, "ignored": [2]})))
    assert table[[3, 1, 2, 255]].tolist() == [0, 1, IGNORE_INDEX, IGNORE_INDEX]
    assert np.flatnonzero(known).tolist() == [1, 2, 3, 255]


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([("a", GREY, 0)], {}, r"classes: expected a list of 2 to 255 classes, found \[\{"),
        ([(f"c{i}", GREY, i % 255) for i in range(256)], {}, "expected a list of 2 to 255 classes"),
        ([("a", GREY, 0), ("a", GREY, 1)], {}, "the name 'a' is given to more than one class"),
        ([("a", GREY, 4), ("b", GREY, 4)], {}, "the id 4 is given to more than one class"),
        (
            [("a", [1, 2], 0), ("b", GREY, 1)],
            {},
            r"classes\[0\], color: expected 3 numbers from 0 to 255, found \[1, 2\]",
        ),
        ([("a", [1, 2, 256], 0), ("b", GREY, 1)], {}, "color: expected 3 numbers from 0 to 255"),
        ([("a", GREY, 0), ("b", GREY, 256)], {}, r"classes\[1\], id: expected a number from 0 to 255"),
        ([("a", GREY, 0), ("b", GREY, True)], {}, "id: expected a number"),
        ([("a", GREY, 0), (True, GREY, 1)], {}, "name: expected a text of 1 to 100 characters, found True"),
        ([("a", GREY, 0), ("b", GREY, 1)], {"ignored": [1]}, "ignored: the id 1 is that of class 'b'"),
        ([("a", GREY, 0), ("b", GREY, 1)], {"ignored": 5}, "ignored: expected a list of ids"),
        ([("a", GREY, 0), ("b", GREY, 1)], {"ignore": []}, "unknown key 'ignore'; did you mean 'ignored'"),
    ],
)
def test_a_mistake_is_one_sentence(write, rows, more, message):
    named = [{"name": name, "color": color, "id": label_id} for name, color, label_id in rows]
    file = write({"classes": named, **more})
    with pytest.raises(InputError, match=message) as caught:
        load_classes(file)
    assert str(caught.value).startswith(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes: [road, 3]", r"classes\[1\]: expected a mapping with the keys name, color, id, found 3"),
        ("classes: [road, {name: sky, color: [1, 2, 3]}]", r"classes\[0\], color: expected 3 numbers"),
        ("classes: [{name: a, colour: [1, 2, 3]}, {name: b}]", "unknown key 'colour'; did you mean 'color'"),
        ("- 1", "expected a mapping with the keys labels, classes, ignored"),
        ("classes: [", "not valid YAML"),
        ("classes: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("{}", "classes: expected a list of 2 to 255 classes, found null"),
    ],
)
def test_a_file_of_another_shape_is_one_sentence(write, text, message):
    with pytest.raises(InputError, match=message) as caught:
        load_classes(write(text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match=r"/nowhere.yaml: cannot be read \(no such file\)"):
        load_classes("/nowhere.yaml")


def test_names_alone_are_enough(write):
    expected = named_classes(["background", "crop", "weed"])
    assert load_classes(write("classes: [background, crop, weed]")) == expected
    assert load_classes(write({"classes": [{"name": "background"}, {"name": "crop"}, {"name": "weed"}]})) == expected
    assert load_classes("background, crop,weed") == expected
    assert expected.ids == (0, 1, 2)
    assert expected.colors[0] == (0, 0, 0)
    many = named_classes([str(number) for number in range(255)])
    assert len(set(many.colors)) == 255


def test_the_colours_of_vocs_map_are_vocs():
    """Its first ones, as the devkit's ``VOClabelcolormap`` gives them."""
    published = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128), (0, 128, 128)]
    assert [chosen_color(index) for index in range(7)] == published
    assert chosen_color(15) == (192, 128, 128)  # person


def test_names_of_cityscapes_keep_its_colours_and_others_do_not_clash():
    assert named_classes(["road", "car"]).colors == ((128, 64, 128), (0, 0, 142))
    assert named_classes(["road", "hedgehog"]).colors == (chosen_color(1), chosen_color(2))
    # black is no data on maps, but of a background
    assert named_classes(["crop", "Background", "weed"]).colors == (chosen_color(1), chosen_color(0), chosen_color(2))


def test_a_mask_in_black_and_white_has_the_class_255(write):
    rows = [{"name": "no", "id": 0}, {"name": "yes", "id": 255}]
    classes = load_classes(write({"classes": rows}))
    table, known = id_tables(classes)
    assert table[[0, 255, 7]].tolist() == [0, 1, IGNORE_INDEX]
    assert np.flatnonzero(known).tolist() == [0, 255]
    assert classes.to_ids()[[0, 1]].tolist() == [0, 255]

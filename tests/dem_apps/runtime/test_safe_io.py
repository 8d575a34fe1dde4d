"""YAML and JSON from strangers: plain values or one sentence, and nothing run, unfolded or waited for."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import yaml

from dem_apps.errors import InputError
from dem_apps.runtime.files import parsed_json, parsed_yaml, read_json, read_text, read_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
MERGES = "a: &b0 {x: 1}\n" + "".join(f"m{i}: &b{i + 1} {{<<: [{', '.join([f'*b{i}'] * 9)}]}}\n" for i in range(20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.system ['touch {marker}']", "could not determine a constructor"),
        ("a: !!python/object/new:os.system [touch {marker}]", "could not determine a constructor"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {marker}']", "could not determine a constructor"),
        (BOMB, "unfolds into more than 100,000 values"),
        (MERGES, "unfolds into more than 100,000 values"),
        ("a: &a [*a]", r"the alias \*a lies within itself"),
        ("? &a [*a]\n: 1", r"the alias \*a lies within itself"),
        ("a: *a", "found undefined alias"),
        ("[" * 100_000, "nests deeper than 64 levels"),
        ("{a: " * 100_000, "nests deeper than 64 levels"),
        ("- " * 100_000, "nests deeper than 64 levels"),
        ("? " * 100_000, "nests deeper than 64 levels"),
        ("x: " + ":".join(["1"] * 50_000), "a value of more than 10,000 characters"),
        ("x: " + "9" * 5000, "not valid YAML"),
        ("x: 0x" + "f" * 5000, "a number of more than 64 bits"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is given twice"),
        ("a: {b: 1, b: 2}", "the key 'b' is given twice"),
        ("x: 2001-02-30", "not valid YAML: day is out of range"),
        ("? [1, 2]\n: 3", "unhashable key"),
        ("!!timestamp x", "not valid YAML"),
        ("x: !!int a", "not valid YAML"),
        ("!!omap [1]", "not valid YAML"),
        ("!!map x", "not valid YAML"),
        ("--- 1\n--- 2", "expected a single document"),
        ("\x00", "control characters are not allowed"),
    ],
)
def test_yaml_that_no_settings_are(text: str, message: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=message) as refused:
        parsed_yaml(text.replace("{marker}", str(marker)), "settings.yaml")
    assert str(refused.value).startswith("settings.yaml: ")
    assert not marker.exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100_000, "it was unfolded"  # KiB


def test_what_settings_do_with_yaml_goes_on() -> None:
    text = "base: &base {n: 8, lr: lin_2.5e-4}\nenv:\n  <<: *base\n  n: 4\nempty:\nlist: [1, 2.5, yes, null, 'a']\n"
    assert parsed_yaml(text, "x") == yaml.safe_load(text)
    assert parsed_yaml("a: {x: 1, <<: {x: 2, y: 3}}", "x") == {"a": {"x": 1, "y": 3}}
    many = yaml.safe_dump({"exclude": [f"image{i}.png" for i in range(20_000)]})
    assert len(parsed_yaml(many, "x")["exclude"]) == 20_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nests deeper than 64 levels"),
        ("[" * 900 + "]" * 900, "nests deeper than 64 levels"),
        ('{"a":' * 200 + "1" + "}" * 200, "nests deeper than 64 levels"),
        ("9" * 5000, "not valid JSON"),
        ('{"a": ', "not valid JSON"),
        ("", "not valid JSON"),
        ('{"a": 1} x', "not valid JSON"),
    ],
)
def test_json_that_no_file_of_ours_is(text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^run/eval\.json: {message}[^\n]*$"):
        parsed_json(text, "run/eval.json")


def test_json_keeps_what_it_holds() -> None:
    assert parsed_json('{"a": [1, 2.5, "\\u8857", null]}', "x") == {"a": [1, 2.5, "街", None]}
    assert parsed_json("[" * 64 + "]" * 64, "x")


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_what_is_no_file_is_not_waited_for(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "endless")
    (tmp_path / "latin").write_bytes(b"a: \xff")
    for name, message in {
        "pipe": "no regular file", "endless": "no regular file", ".": "no regular file", "gone": "no such file",
        "x" * 300: "File name too long", "nul\x00": "null byte", "latin": "no text in UTF-8",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


def test_a_file_with_holes_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with open(file, "wb") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(InputError, match="longer than 1,048,576 bytes"):
        read_yaml(file)
    with pytest.raises(InputError, match="longer than 100 bytes"):
        read_text(file, 100)

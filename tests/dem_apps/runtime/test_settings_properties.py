"""Settings with anything anywhere: they are read as they stand, or refused in one line; never a stack trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dem_apps.errors import InputError
from dem_apps.runtime.settings import from_dict, option, parse_config, to_dict


@dataclasses.dataclass(frozen=True)
class Inner:
    root: str | None = option(None, "a folder")
    size: list[int] | None = option(None, "two numbers")
    share: float = option(0.5, "a number")


@dataclasses.dataclass(frozen=True)
class Middle:
    name: Literal["a", "b"] = option("a", "a name")
    inner: Inner = dataclasses.field(default_factory=Inner)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of every kind of type."""

    steps: int = option(10, "steps")
    rate: float | str = option(0.1, "a number or an expression")
    shares: list[float] = option([0.0, 1.0], "numbers")
    exclude: list[str] = option([], "names")
    items: list[dict[str, Any]] = option([], "anything")
    free: dict[str, Any] = option({}, "anything")
    verbose: bool = option(False, "a switch")
    danger: bool = option(False, "only on the command line", flag_only=True)
    middle: Middle = dataclasses.field(default_factory=Middle)
    inner: Inner = dataclasses.field(default_factory=Inner)


KNOWN = (
    *(field.name for kind in (Settings, Middle, Inner) for field in dataclasses.fields(kind)),
    "middle.name", "middle.inner.root", "inner.", ".inner", "free.a.b", "config", "__class__", "inner.size.0",
)  # fmt: skip


def mappings(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any]]:
    keys = st.one_of(st.text(max_size=6), st.integers(), st.booleans(), st.none(), st.sampled_from(KNOWN))
    return st.dictionaries(keys, values, max_size=3)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.binary(max_size=3),
    st.sampled_from(["null", "true", "1e3", "0x1f", "[1", "{a: 1}", "a: b", "1:2:3", "\x1b[31m", "lin_1", "", " "]),
)  # fmt: skip
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | mappings(inner), max_leaves=8)


def outcome(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """What is returned, or the one line of a refusal."""
    try:
        return call(), None
    except InputError as refused:
        sentence = str(refused)
    except SystemExit as left:  # --help
        return None, f"left with {left.code}"
    assert "\n" not in sentence
    assert "\x1b" not in sentence
    return None, sentence


def parsed(document: Any, folder: Path, *flags: str) -> Settings | None:
    """The settings, or None after a refusal."""
    file = folder / "settings.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    settings: Settings | None = outcome(lambda: parse_config(Settings, "x", "x", ["--config", str(file), *flags]))[0]
    return settings


def assert_sound(settings: Any) -> None:
    """Every value is of its type and can be written and read again."""
    again = from_dict(Settings, yaml.safe_load(yaml.safe_dump(to_dict(settings))), "config.yaml")
    assert again == settings
    assert isinstance(settings.steps, int)
    assert not isinstance(settings.steps, bool)
    assert all(math.isfinite(share) for share in settings.shares)
    assert isinstance(settings.middle.inner.share, (int, float))
    assert math.isfinite(settings.middle.inner.share)
    assert settings.middle.name in ("a", "b")
    assert settings.danger is False


@given(mappings(anything))
@example({"innre": None})
@example({"inner": ""})
@example({"inner": []})
@example({"inner": {"rooot": {}}})
@example({"middle": {"name": None}})
@example({"steps": True})
@example({"steps": 1 << 70})
@example({"shares": [math.nan]})
@example({"rate": math.inf})
@example({"exclude": ["a", None]})
@example({"middle.inner": {"root": "x"}})
@example({"middle.inner.root": "x"})
@example({"middle.inner.rot": {}})
def test_any_document(tmp_path: Path, document: dict[Any, Any]) -> None:
    settings = parsed(document, tmp_path)
    if settings is not None:
        assert_sound(settings)
        assert all(str(key).split(".")[0] in {f.name for f in dataclasses.fields(Settings)} for key in document)


@given(st.one_of(anything, st.text()))
@example("")
@example("--- 1\n--- 2")
@example("a: &a [*a]")
@example("!!python/object/apply:os.system [x]")
@example("steps: 1\nsteps: 2")
def test_any_text(tmp_path: Path, document: Any) -> None:
    settings = parsed(document, tmp_path)
    if settings is not None:
        assert_sound(settings)


@given(st.sampled_from([f.name for f in dataclasses.fields(Settings)]), anything)
def test_a_run_folders_settings(name: str, value: Any) -> None:
    settings, sentence = outcome(lambda: from_dict(Settings, {name: value}, "run/config.yaml"))
    if sentence is not None:
        assert sentence.startswith("run/config.yaml, ")
    elif name != "danger":
        assert_sound(settings)


flags = st.sampled_from([
    "--steps", "--rate", "--shares", "--exclude", "--items", "--free", "--free.a", "--verbose", "--danger", "--inner",
    "--inner.root", "--inner.size", "--middle.inner.share", "--middle.name", "--config", "--print_config", "--help",
    "--nothing", "--", "-x", "--inner.", "--=", "--steps+",
])  # fmt: skip
words = st.one_of(
    scalars.map(str),
    st.text(max_size=10),
    st.sampled_from(["[" * 2000, "&a [*a]", "!!python/name:os.system", "9" * 5000]),
)


@given(st.lists(st.one_of(st.tuples(flags, words).map(lambda p: [f"{p[0]}={p[1]}"]), st.tuples(flags, words).map(list),
                          flags.map(lambda flag: [flag]), words.map(lambda word: [word])), max_size=4))  # fmt: skip
@example([["--verbose", "\udcff"]])
@example([["--inner.root", "a\x00b"]])
@example([["--inner.root", "\x1b]0;x\x07"]])
def test_any_command_line(arguments: list[list[str]]) -> None:
    _, sentence = outcome(lambda: parse_config(Settings, "x", "x", [word for pair in arguments for word in pair]))
    assert sentence != "left with 1"


def test_what_is_dangerous_is_no_matter_for_a_file(tmp_path: Path) -> None:
    assert parsed("danger: false", tmp_path) == Settings()
    assert parsed("steps: 3", tmp_path, "--danger") == Settings(steps=3, danger=True)
    (tmp_path / "settings.yaml").write_text("danger: true")
    with pytest.raises(InputError, match=r"^--config: danger: can only be given on the command line, as --danger$"):
        parse_config(Settings, "x", "x", ["--config", str(tmp_path / "settings.yaml")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("innre: {}", r"^--config: unknown key 'innre'; did you mean 'inner'\?$"),
        ("middle: {inner: {rot: {}}}", r"unknown key 'middle\.inner\.rot'; did you mean 'middle\.inner\.root'\?$"),
        ("inner: null", "^--config: inner: expected a mapping of keys, got null$"),
        ("inner: other.yaml", "^--config: inner: expected a mapping of keys, got 'other.yaml'$"),
        ("config: other.yaml", "^--config: unknown key 'config'"),
        ("steps: null", "^--steps: expected int, got null$"),
        ("inner: {root: 3}", r"^--inner\.root: expected str or null, got '3'$"),
        ("inner: {size: 3}", r"^--inner\.size: expected list of int or null, got '3'$"),
        ("inner: {share: .nan}", r"^--inner\.share: expected a finite number, got nan$"),
        ("shares: [.inf]", "^--shares: expected a finite number, got inf$"),
        ("free: {a: !!binary aGk=}", "^--free: expected a plain value, got bytes$"),
        ('inner: {root: "a\\0b"}', r"^--inner\.root: holds the control character \\x00, which no setting may$"),
        ('free: {a: ["\\e[31m"]}', r"^--free: holds the control character \\x1b, which no setting may$"),
        ("steps: 9999999999999999999", "^--steps: is a number of more than 64 bits$"),
    ],
)  # fmt: skip
def test_mistakes_that_once_passed_or_crashed(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        parse_config(Settings, "x", "x", ["--config", str(tmp_path / "settings.yaml")])

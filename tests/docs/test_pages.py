"""The pages cannot rot: their Python runs, their commands parse, what they link to and name is there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import pages
from torch import nn

import dem_apps.runtime.settings
from dem_apps import OBJECTIVE_NAMES
from dem_apps.errors import InputError
from dem_apps.objectives import objective_options
from dem_apps.runtime.files import cache_dir

ROOT: Path = pages.ROOT
TEXTS = {pages.named(page): page.read_text(encoding="utf-8") for page in pages.PAGES}
COMMANDS = [command for page in pages.PAGES for command in pages.page_commands(page)] + [
    command for config in pages.CONFIGS for command in pages.header_commands(config)
]
#: Of all pages that a user reads together; bars of tables and code fences are no words.
MOST_WORDS = 20_000
#: What reads the command line, by the name it has in the commands' modules.
READERS = ("parse_config", "parse_search", "_options")


class Parsed(Exception):
    """Raised in place of what a command would do with its settings."""


def with_blocks(*languages: str) -> list[str]:
    """Pages with something to run."""
    return [
        name
        for name, text in TEXTS.items()
        if any(block.language in languages and block.not_run is None for block in pages.blocks(text))
    ]


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in pages.blocks(TEXTS[page]):
        if block.language == "python" and block.not_run is None:
            run_python(block, page, namespace)


def run_python(block: Any, page: str, namespace: dict[str, Any]) -> None:
    # empty lines before it, so that a traceback names the page's own line
    exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), namespace)


def test_the_test_time_example_is_short_and_adapts_normalisation_alone() -> None:
    page = "docs/howto/own_training_loop.md"
    (block,) = (block for block in pages.blocks(TEXTS[page]) if "def adapt(" in block.text)
    assert block.text.count("\n") < 40
    namespace: dict[str, Any] = {}
    run_python(block, page, namespace)
    model = namespace["resnet18"](num_classes=10)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    outputs = list(namespace["adapt"](model, torch.rand(2, 8, 3, 32, 32), 10, lr=0.1))
    assert [tuple(logits.shape) for logits in outputs] == [(8, 10), (8, 10)]
    normalisations = {f"{name}." for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.removesuffix("weight").removesuffix("bias") in normalisations}


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("sh"))
def test_shell_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, between its Python, in a folder that has ``configs`` and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "cache").mkdir()
    for kept in ("demo", "kernels"):  # what takes long to make
        (cache_dir() / kept).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / kept).symlink_to(cache_dir() / kept)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "DEM_APPS_CACHE": str(tmp_path / "cache"),
    }
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in pages.blocks(TEXTS[page]):
        if block.not_run is None and block.language == "python":
            run_python(block, page, namespace)
        if block.not_run is None and block.language == "sh":
            done = subprocess.run(["bash", "-e", "-c", block.text], env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{page}:{block.line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.where} {command.module}")
def test_command_lines_parse(command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the command's own reader of its command line; what it would then do is left out."""
    name = command.module
    module = importlib.import_module(f"{name}.__main__" if (ROOT / name.replace(".", "/")).is_dir() else name)
    for reader in READERS:
        if hasattr(module, reader):
            monkeypatch.setattr(module, reader, stopping(getattr(module, reader)))
    monkeypatch.setattr("dem_apps.report.page.write_report", stopping(lambda *_: None))
    # a resumed run's settings, which no file is there to give
    monkeypatch.setattr(dem_apps.runtime.settings, "read_config", lambda _path: {})
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *without_made_files(command.arguments, tmp_path)])
    main = module.main if hasattr(module, "main") else module._main
    try:
        main()
    except Parsed:
        return
    except InputError as error:
        if not command.arguments and re.search("is missing; needed: |^RUN: ", str(error)):  # only the command's name
            return
        pytest.fail(f"{command.where}: {name} {' '.join(command.arguments)}: {error}")
    except SystemExit as ended:
        if "--help" in command.arguments and not ended.code:
            return
    pytest.fail(f"{command.where}: {name} {' '.join(command.arguments)}: its command line was not read")


def stopping(reader: Any) -> Any:
    def read(*arguments: Any, **options: Any) -> Any:
        config = reader(*arguments, **options)
        if hasattr(config, "check"):
            config.check()
        raise Parsed

    return read


def without_made_files(arguments: tuple[str, ...], folder: Path) -> list[str]:
    """With ``folder`` for what only the reader has: images; settings files go, those in configs must be there."""
    kept = list(arguments)
    for place, argument in enumerate(arguments):
        if argument in ("--images", "--labels", "--source"):
            kept[place + 1] = str(folder)
    for place in reversed([place for place, argument in enumerate(kept) if argument == "--config"]):
        if not kept[place + 1].startswith("configs/"):
            del kept[place : place + 2]
    return kept


def test_no_command_is_missed() -> None:
    found = [command.where.rpartition(":")[0] for command in COMMANDS]
    texts = {**TEXTS, **{pages.named(config): config.read_text() for config in pages.CONFIGS}}
    for name, text in texts.items():
        assert found.count(name) == pages.mentions(text), f"{name}: put each command into a block or into backquotes"
    assert len(found) > 60


@pytest.mark.parametrize("page", TEXTS)
def test_scripts_and_make_targets_exist(page: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for block in pages.blocks(TEXTS[page]):
        if block.language in ("", "sh"):
            for script in re.findall(r"python ([\w/]+\.py)", block.text):
                assert (ROOT / script).is_file(), f"{page}: {script}"
            for target in re.findall(r"^make (\w+)", block.text, flags=re.M):
                assert target in targets, f"{page}: make {target}"


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for link in pages.links(TEXTS[page]):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in pages.anchors(target.read_text(encoding="utf-8")), f"{page}: {link} has no such heading"


@pytest.mark.parametrize("page", TEXTS)
def test_files_and_names_exist(page: str) -> None:
    for mention in pages.named_files(TEXTS[page]):
        file, _, name = mention.partition("::")
        assert list(ROOT.glob(file)), f"{page}: {mention}"
        if name:
            assert name in pages.defined(ROOT / file), f"{page}: {mention}"
    for name in pages.named_objects(TEXTS[page]):
        assert pages.is_object(name), f"{page}: {name}"
    for file in pages.tree_files(TEXTS[page]):
        assert (ROOT / file).exists(), f"{page}: {file}"


def test_the_table_of_equations_names_what_there_is() -> None:
    tests = {
        name
        for file in (ROOT / "tests" / "dem_apps").rglob("test_*.py")
        for name in pages.defined(file)
        if name.startswith("test_")
    }
    rows = [
        line.split("|")
        for line in TEXTS["docs/method.md"].splitlines()
        if re.match(r"\| (Eq\.|Sec\.|Alg\.|\w+ et al\.|\w+ and \w+)", line)
    ]
    functions, names, checks = (
        [re.findall(r"`([^`]+)`", row[column]) for row in rows if "`" in row[column]] for column in (3, 4, 5)
    )
    equations = [ROOT / "dem_apps" / "entropy.py", *(ROOT / "dem_apps" / "objectives").glob("*.py")]
    assert {name for row in functions for name in row} <= {name for file in equations for name in pages.defined(file)}
    assert {row[0]: row[1:] for row in names} == {name: objective_options(name) for name in OBJECTIVE_NAMES}
    assert len(checks) == len(rows)
    assert {name for row in checks for name in row} <= tests


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in pages.links(index.read_text())}
    beside = {index, ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    missing = [pages.named(page) for page in pages.PAGES if page not in beside and page.resolve() not in listed]
    assert not missing


def test_the_pages_that_a_user_reads_are_short() -> None:
    """Those who add something read more, and nobody needs the appendix."""
    of_others = re.compile(r"CONTRIBUTING\.md|docs/(appendix|contributing|method)\.md|docs/howto/add_\w+\.md")
    words = {name: len(re.findall(r"\S*\w\S*", text)) for name, text in TEXTS.items() if not of_others.fullmatch(name)}
    assert sum(words.values()) < MOST_WORDS, sorted(words.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("page", TEXTS)
def test_yaml_blocks_are_yaml(page: str) -> None:
    for block in pages.blocks(TEXTS[page]):
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict), f"{page}:{block.line}"


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    (paper,) = citation["references"]
    assert (paper["title"], paper["year"]) == ("Decoupled Entropy Minimization", 2025)
    assert {"cff-version", "message", "title", "authors"} <= set(citation)

"""Pages: their Python runs, commands parse, files, names and links exist; examples in docstrings run."""

import doctest
import os
import re
import runpy
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from support import ROOT, pages

import dem_apps.runtime.settings
from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir
from dem_apps.runtime.settings import from_dict
from seg.benchmark import BenchmarkConfig
from seg.config import TrainConfig
from seg.data.labels import load_classes
from seg.data.street.demo_pair import write_demo_pair

TEXTS = {pages.named(page): pages.text_of(page) for page in (*pages.PAGES, *pages.NOTEBOOKS)}
COMMANDS = [
    command
    for file in (*pages.PAGES, *pages.NOTEBOOKS, *pages.CONFIGS)
    for command in pages.commands(file)
]
FOLDERS = ("dem_apps", "seg", "rl", "tests", "benchmarks", "configs", "docs")
BLOCKS = [(page, block) for page, text in TEXTS.items() for block in pages.blocks(text)]


def with_blocks(language):
    """Pages with something to run; a notebook takes a minute."""
    names = [
        name
        for name, text in TEXTS.items()
        if any(b.language == language and b.run for b in pages.blocks(text))
    ]
    return [
        pytest.param(name, marks=[pytest.mark.slow] * name.endswith(".ipynb")) for name in names
    ]


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """On a smaller demo, and policies for fewer steps."""
    learn = OnPolicyAlgorithm.learn
    shortly = lambda model, total_timesteps, **more: learn(model, min(total_timesteps, 512), **more)  # noqa: E731
    monkeypatch.setattr(OnPolicyAlgorithm, "learn", shortly)
    demo = partial(
        write_demo_pair,
        tmp_path / "demo",
        size=(96, 48),
        source_train=4,
        target_train=3,
        target_val=2,
    )
    monkeypatch.setattr("seg.data.domains._demo_pair", lambda *_: demo())
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    blocks = [
        block for block in pages.blocks(TEXTS[page]) if block.run and block.language == "python"
    ]
    assert blocks
    for block in blocks:
        run_python(block, page, namespace)


def run_python(block, page, namespace):
    # empty lines before it, so that a traceback names the page's own line
    exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("sh"))
def test_shell_blocks_run(page, tmp_path, monkeypatch):
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
    namespace = {"__name__": "__main__"}
    for block in pages.blocks(TEXTS[page]):
        if block.run and block.language == "python":
            run_python(block, page, namespace)
        if block.run and block.language == "sh":
            done = subprocess.run(
                ["bash", "-e", "-c", block.text], env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (
                f"{page}:{block.line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
            )


@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: f"{command.where} {command.module}"
)
def test_command_lines_parse(command, monkeypatch, tmp_path):
    # a resumed run's settings, which no file is there to give
    monkeypatch.setattr(dem_apps.runtime.settings, "read_config", lambda _path: {})
    try:
        assert pages.reads_its_command_line(command, monkeypatch, tmp_path)
    except InputError:
        assert not command.arguments  # only the command's name, without what it needs


SHOWN = {page: "".join(b.text for b in pages.blocks(text)) for page, text in TEXTS.items()}


def mentions(kind):
    """(page, what it names) of all pages, at least a few; the same name once a page."""
    found = {
        "make": lambda page: re.findall(r"^make ([a-z-]+)", SHOWN[page], flags=re.M),
        "file": lambda page: [
            *re.findall(r"python ([\w/]+\.py)", SHOWN[page]),
            *pages.in_backquotes(
                TEXTS[page], rf"(?:{'|'.join(FOLDERS)})/[\w./-]*\w\.\w+(?:::[\w.]+)?"
            ),
        ],
        "name": lambda page: pages.in_backquotes(TEXTS[page], r"(?:dem_apps|seg|rl)(?:\.\w+)+"),
        "link": lambda page: pages.links(TEXTS[page]),
    }[kind]
    every = [(page, name) for page in TEXTS for name in dict.fromkeys(found(page))]
    assert len(every) > 2, kind
    return every


@pytest.mark.parametrize(("page", "target"), mentions("make"))
def test_make_targets_exist(page, target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M)


@pytest.mark.parametrize(("page", "mention"), mentions("file"))
def test_files_and_their_names_exist(page, mention):
    file, _, name = mention.partition("::")
    assert (ROOT / file).is_file()
    if name:
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        resolve_name(f"{module}:{name}")


@pytest.mark.parametrize(("page", "name"), mentions("name"))
def test_names_of_python_exist(page, name):
    assert resolve_name(name) is not None


def test_the_files_of_the_readme_exist():
    (tree,) = [
        block.text
        for block in pages.blocks(TEXTS["README.md"])
        if block.text.startswith("dem_apps/ ")
    ]
    room = ""
    for line in tree.splitlines():
        indented, name = re.match(r"(\s*)([\w/]+)", line).groups()
        room = room if indented else name
        assert (ROOT / (room + name if indented else name)).is_dir(), line
        assert all(list((ROOT / room).glob(file)) for file in re.findall(r"\w+\.py\b", line)), line


@pytest.mark.parametrize(("page", "link"), mentions("link"))
def test_links_lead_somewhere(page, link):
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    assert target.exists()
    assert not anchor or anchor in pages.anchors(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", TEXTS)
def test_a_heading_stands_once(page):
    headings = pages.anchors(TEXTS[page])
    assert sorted(set(headings)) == sorted(headings)


@pytest.mark.parametrize(("page", "block"), [each for each in BLOCKS if each[1].language == "yaml"])
def test_yaml_blocks_are_settings_or_class_files(page, block, tmp_path):
    content = yaml.safe_load(block.text)
    if isinstance(content.get("classes"), list):
        (tmp_path / "classes.yaml").write_text(block.text, encoding="utf-8")
        names = [entry["name"] for entry in content["classes"]]
        assert list(load_classes(str(tmp_path / "classes.yaml")).names) == names
    else:  # an unknown key is an InputError
        settings = BenchmarkConfig if "seeds" in content or "arms" in content else TrainConfig
        from_dict(settings, content, f"{page}:{block.line}")


def test_every_page_is_in_the_index_and_in_the_menu_of_the_site():
    pytest.importorskip("sphinx")
    menu = runpy.run_path(str(ROOT / "docs" / "conf.py"))["menu"](TEXTS["docs/index.md"])
    listed = re.findall(r"^[\w/]+\.(?:md|rst)$", menu, flags=re.M)
    docs = ROOT / "docs"
    there = {str(page.relative_to(docs)) for page in (*docs.rglob("*.md"), *docs.rglob("*.rst"))}
    assert sorted(listed) == sorted(there - {"index.md"})


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("dem_apps", "seg", "rl")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, capsys):
    failed, tried = doctest.testmod(import_module(name))
    assert tried > 0, f"{name}: its examples are in no docstring"
    assert failed == 0, capsys.readouterr().out


def test_what_a_user_imports_is_in_the_reference_with_an_example():
    listed = set(
        re.findall(r"^\.\. auto\w+:: (\S+)$", (ROOT / "docs" / "api.rst").read_text(), flags=re.M)
    )
    assert {
        f"{each}.{name}"
        for each in ("dem_apps", "seg", "rl")
        for name in import_module(each).__all__
    } <= listed
    for name in listed - {"dem_apps.OBJECTIVE_NAMES"}:
        assert ">>> " in (resolve_name(name).__doc__ or ""), name

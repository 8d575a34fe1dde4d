"""The site, ``make docs``: it builds without a warning, fetches nothing, and no link of it leads nowhere."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from support import pages

DOCS = pages.ROOT / "docs"
#: What a browser fetches without being asked.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """What a page links to, what it fetches, and its anchors."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for name in (given.get("id"), given.get("name")) if name}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if given.get(FETCHED.get(tag, "")):
            self.fetched.append(str(given[FETCHED[tag]]))


def built(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(out)]
    return subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def configuration() -> Any:
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_menu_has_every_page_once(configuration: Any) -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    menu = configuration.menu(index).removeprefix(index)
    listed = [line for line in menu.splitlines() if line.endswith((".md", ".rst"))]
    there = {str(page.relative_to(DOCS)) for page in (*DOCS.rglob("*.md"), *DOCS.rglob("*.rst"))}
    assert sorted(listed) == sorted(there - {"index.md"})
    captions = [line.removeprefix(":caption: ") for line in menu.splitlines() if line.startswith(":caption:")]
    assert captions[0] == "Start"


@pytest.mark.slow
def test_the_site_builds_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    done = built(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found = {file: Page(file) for file in tmp_path.rglob("*.html")}
    assert len(found) > 30
    for file, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.is_file(), f"{file.relative_to(tmp_path)}: {link}"
            if parts.fragment and target in found:
                assert unquote(parts.fragment) in found[target].anchors, f"{file.relative_to(tmp_path)}: {link}"
        assert not [name for name in page.fetched if urlsplit(name).netloc], f"{file.relative_to(tmp_path)}"
        assert all((file.parent / unquote(urlsplit(name).path)).exists() for name in page.fetched)
    names = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in names for name in ("dem_apps.build_objective", "dem_apps.TestTimeAdapter", "seg.load"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["[gone](gone.md)", "[gone](other.md#gone)", "![gone](gone.png)"])
def test_a_link_that_leads_nowhere_is_an_error(fault: str, tmp_path: Path) -> None:
    pytest.importorskip("furo")
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    shutil.copytree(DOCS / "_static", source / "_static")
    (source / "index.md").write_text("# Pages\n\n## Start\n\n| page | for |\n|---|---|\n| [Other](other.md) | all |\n")
    (source / "other.md").write_text("# Other\n\nhere\n")
    assert built(source, tmp_path / "good").returncode == 0
    (source / "other.md").write_text(f"# Other\n\n{fault}\n")
    done = built(source, tmp_path / "bad")
    assert done.returncode != 0
    assert "gone" in done.stderr

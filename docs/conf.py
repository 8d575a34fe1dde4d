"""The site of these pages, ``make docs``: Sphinx reads the Markdown as it is. The menu is what index.md links to."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the reference is made from the docstrings of this clone

project = "dem-apps"
author = "The dem-apps authors"
html_show_copyright = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["results"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
highlight_language = "none"  # of blocks that name no language: command lines
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = "dem-apps"
html_copy_source = False
html_show_sourcelink = False


def menu(text: str) -> str:
    """index.md and a hidden table of contents: a caption per section, the pages that its list items begin with."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        caption = section.partition("\n")[0].strip()
        pages = re.findall(r"^- \[[^]]+\]\(([\w/.]+\.(?:md|rst))\)", section, flags=re.M)
        if pages:
            text += (
                f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
                + "\n".join(pages)
                + "\n```\n"
            )
    return text


def _add_menu(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] = menu(source[0])


def _classes_in_words(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """``num_classes: C.`` would begin a list, of which C. is an item."""
    lines[:] = [re.sub(r": C\.$", ": the number of classes, C.", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add_menu)
    # before napoleon reads the arguments
    app.connect("autodoc-process-docstring", _classes_in_words, priority=400)

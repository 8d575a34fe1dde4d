"""The pages that add something, applied to a copy of the repository: every patch, then the page's own tests.

Such a page, ``docs/howto/add_*.md``, has its patches as ``diff`` blocks and then a line ``python -m pytest …``. Its
patches add one source file and touch one table in another.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from support import clone, pages

HOWTOS = sorted((pages.ROOT / "docs" / "howto").glob("add_*.md"))
SOURCES = ("dem_apps/", "seg/", "rl/")
#: Of a table: the line that enters the name, and the import that brings what stands there.
MOST_TABLE_LINES = 2


def in_copy(folder, *command, given=None):
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True
    )


def test_there_is_a_page_for_everything_that_is_added():
    added = (
        "an_objective",
        "a_method",
        "a_network",
        "a_layout",
        "an_environment_family",
        "a_test_time_method",
    )
    assert {page.stem.removeprefix("add_") for page in HOWTOS} == set(added)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="the pages use git apply")
@pytest.mark.parametrize("page", HOWTOS, ids=lambda page: page.stem)
def test_the_steps_are_complete(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    patches = [block for block in pages.blocks(text) if block.language == "diff"]
    assert patches
    clone(tmp_path, "docs/images/", "docs/results/")
    for patch in patches:
        applied = in_copy(tmp_path, "git", "apply", "--verbose", "-", given=patch.text)
        assert applied.returncode == 0, f"line {patch.line}: {applied.stderr}"
    new, tables = touched("".join(patch.text for patch in patches))
    assert len(new) == 1, new
    assert len(tables) <= 1, tables
    assert all(lines <= MOST_TABLE_LINES for lines in tables.values()), tables
    (arguments,) = re.findall(r"^python -m pytest (.+)$", text.replace("\\\n", ""), flags=re.M)
    done = in_copy(
        tmp_path,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *shlex.split(arguments),
    )
    assert done.returncode == 0, done.stdout[-3000:]


def touched(patch):
    """Of a patch's source files: the new ones, and the lines that the others gain."""
    new = []
    tables = {}
    for fresh, file, lines in re.findall(
        r"^--- (\S+)\n\+\+\+ b/(\S+)\n((?:(?!--- ).*\n)*)", patch, flags=re.M
    ):
        if not file.startswith(SOURCES):
            continue
        if fresh == "/dev/null":
            new.append(file)
        else:
            tables[file] = len(re.findall(r"^\+", lines, flags=re.M))
    return new, tables

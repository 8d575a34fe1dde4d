"""One page that shows what happened in one or more runs.

The page is one file that opens from a disk: pictures are inside, nothing is loaded from anywhere, and its content
security policy lets no other script run than its own. Only files of the run folders are read, never a model.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dem_apps.errors import InputError, nearest
from dem_apps.report.part import Part, build_part
from dem_apps.report.tables import by_class
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.run_reader import Run, read_runs

#: No page is larger, so that it can be sent by mail.
MOST_BYTES = 10_000_000
#: What is kept free for the page's own text around pictures, on top of the text that was measured.
_RESERVE = 200_000
_TEMPLATES = Path(__file__).parent / "templates"
#: How a page of this command begins, so that it may be replaced by a newer one.
_GENERATOR = b'<!doctype html>\n<html lang="en">\n<meta name="generator" content="dem-apps report">'


@dataclass(frozen=True)
class Options:
    """What the command was asked for.

    Args:
        runs: run folders.
        out: the page's file.
        baseline: the run whose setting the others are compared with; None takes the first.
        tail: names of classes to mark; empty takes the rare ones where the runs say which those are.
    """

    runs: tuple[Path, ...]
    out: Path
    baseline: Path | None = None
    tail: tuple[str, ...] = ()


def write_report(options: Options) -> Path:
    """Read the runs and write the page.

    Returns:
        the page's file.

    Raises:
        InputError: what is no run folder, a file in the way, an unknown baseline or class, or more text than fits.
    """
    _check_out(options.out)
    page = render(read_runs(options.runs), options.baseline, options.tail)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, page)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise InputError(f"--out: {options.out} cannot be written ({error.strerror}); give another file") from error
    return options.out


def render(runs: Sequence[Run], baseline: Path | None = None, tail: Sequence[str] = ()) -> bytes:
    """The page, below :data:`MOST_BYTES`: first without pictures, then with what fits beside its text.

    Raises:
        InputError: the baseline is none of the runs, a tail class is none of theirs, or the text alone is too long.
    """
    first = _baseline(runs, baseline)
    _check_tail(runs, tail)
    headings = dict.fromkeys(run.info.heading for run in runs)
    comparable = [[run for run in runs if run.info.heading == heading] for heading in headings]
    bare = _page([build_part(members, first, tail, budget=0) for members in comparable])
    room = MOST_BYTES - _RESERVE - len(bare)
    if room < 0:
        raise InputError(
            f"{len(runs)} runs: their text alone makes {len(bare):,} bytes of {MOST_BYTES:,}; give fewer runs"
        )
    parts = []
    for position, members in enumerate(comparable):
        part = build_part(members, first, tail, budget=room // (len(comparable) - position))
        room -= part.picture_bytes
        parts.append(part)
    return _page(parts)


def _page(parts: Sequence[Part]) -> bytes:
    return rendered("report.html", parts=parts)


def rendered(template: str, folder: Path | None = None, **values: Any) -> bytes:
    """A page that is one file: style and script inside, and nothing else may be loaded or run.

    Args:
        template: of jinja2, which puts ``style``, ``script`` and ``policy`` where they belong.
        folder: where it lies, if not beside the reports' own, whose macros it can import in either case.
        values: what it shows.
    """
    folders = [_TEMPLATES] if folder is None else [folder, _TEMPLATES]
    environment = Environment(
        loader=FileSystemLoader(folders), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    text = environment.get_template(template).render(
        **values,
        made=time.strftime("%Y-%m-%d %H:%M"),
        style=Markup(style),
        script=Markup(script),
        policy=(
            f"default-src 'none'; img-src data:; media-src data:; style-src '{_sha256(style)}'; "
            f"script-src '{_sha256(script)}'; base-uri 'none'; form-action 'none'"
        ),
    )
    # a lone surrogate, as a JSON file may hold, has no UTF-8
    return text.encode("utf-8", errors="replace")


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _check_out(out: Path) -> None:
    """A page of this command is replaced by the next one; anything else stays."""
    if not out.exists():
        return
    if not out.is_file():
        raise InputError(f"--out: {out} is no file; give a file such as report.html")
    with open(out, "rb") as file:
        if file.read(len(_GENERATOR)) != _GENERATOR:
            raise InputError(f"--out: {out} exists and is no report of this command; give another file")


def _baseline(runs: Sequence[Run], baseline: Path | None) -> Run | None:
    if baseline is None:
        return None
    for run in runs:
        if run.path.resolve() == baseline.resolve():
            return run
    raise InputError(f"--baseline: {baseline} is none of the runs given; name one of them")


def _check_tail(runs: Sequence[Run], tail: Sequence[str]) -> None:
    known = {str(name) for run in runs if run.info.classes for name in by_class(run, run.info.classes.key)}
    for name in tail:
        if name not in known:
            raise InputError(f"--tail: no run has a class '{name}'{nearest(name, known)}")

"""Errors that the user can mend, each one sentence.

:mod:`dem_apps.runtime.command` reports them.
"""

from __future__ import annotations

import difflib
import errno
import math
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from typing import Any, ClassVar

#: The system's numbers for a full disk and an exhausted quota.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Names that are suggested together at most.
_FEW = 3
#: Names of settings in other projects, and their names here.
_OTHERWISE = {"learning_rate": "lr"}
#: Characters of a message at most: whatever it repeats, it stays a sentence.
_LONGEST = 4000
#: C0 and C1 controls, delete, what turns the direction of writing, and halves of characters, which have no UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

#: Messages of torch's allocators on a CPU, on a GPU, and where the size of a tensor is no number any more.
_NO_MEMORY = re.compile(
    r"not enough memory|allocate memory|out of memory|calculation overflowed|multiplication overflow"
)


class InputError(ValueError):
    """A mistake in what the user gave: the message says what, where, and what would be right.

    It is one line, and safe to print whatever names it repeats (:func:`printable`).
    """

    #: The exit status of a command that ends with it.
    status: ClassVar[int] = 2

    def __init__(self, message: str) -> None:
        super().__init__(printable(message)[:_LONGEST])


class NotFiniteError(InputError):
    """Training met a value that is not finite and has stopped before anything was spoilt by it."""

    status = 1


class NotWritten(InputError):
    """A file could not be written to the disk.

    Args:
        problem: says which file, why, and what is still safe.
        then: how to go on.
    """

    def __init__(self, problem: str, then: str = "run again") -> None:
        super().__init__(f"{problem}; mend that and {then}")
        self.problem = problem


class Interrupted(KeyboardInterrupt):
    """Signal ``number`` ended the command; the text, where there is one, is what its user should know."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


def printable(text: str) -> str:
    r"""The text on one line, with escapes such as ``\x1b`` in place of what a terminal would obey and not show."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Return each of several lines as :func:`printable` does."""
    return "\n".join(map(printable, text.split("\n")))


def first_words(error: BaseException) -> str:
    """A library's message on one short line; the error's class where there is none."""
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    line = " ".join(text.split())
    # textwrap.shorten would drop a long path whole
    return line if len(line) <= 300 else f"{line[:300]}…"


@contextmanager
def refused(sentence: Callable[[str], str], *kinds: type[BaseException]) -> Iterator[None]:
    """Turn an exception of these kinds, raised inside, into an InputError.

    Its message is the ``sentence`` of the exception's words.
    """
    try:
        yield
    except kinds as error:
        words = str(error) if isinstance(error, InputError) else first_words(error)
        raise InputError(sentence(words)) from error


def passed_on(where: str, *kinds: type[BaseException]) -> AbstractContextManager[None]:
    """Turn a library's exception, raised inside, into an InputError that begins with ``where``.

    The exception is of any kind by default.
    """
    return refused(lambda why: f"{where}: {why}", *(kinds or (Exception,)))


def is_out_of_memory(error: BaseException) -> bool:
    """Check that an error is of an allocator that has no more memory.

    The allocator is one of Python, numpy or torch, on a CPU or a GPU.
    """
    if isinstance(error, RuntimeError):
        return _NO_MEMORY.search(str(error)) is not None
    return isinstance(error, MemoryError)


def shown(value: Any) -> str:
    """A value in an error: short, and ``null`` for what YAML calls so."""
    return (
        "null" if value is None else f"'{value}'" if isinstance(value, str) else reprlib.repr(value)
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that was meant, or an empty string.

    Dotted names are compared by their last part first, which is what people remember. Case does not count.

    >>> nearest("AdaDME", ["entropy", "adadem"])
    "; did you mean 'adadem'?"
    >>> nearest("--learning-rate", ["--loss", "--a.lr", "--b.lr"])
    "; did you mean '--a.lr' or '--b.lr'?"
    """
    known, last = list(known), _last_part(name)
    last = _OTHERWISE.get(last, last)
    close = [each for each in known if _last_part(each) == last]
    if not 0 < len(close) <= _FEW:
        by_lower = {each.lower(): each for each in known}
        found = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
        close = [by_lower[each] for each in found]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _last_part(name: str) -> str:
    """``crop_size`` of ``--source.crop-size``."""
    return str(name).lstrip("-").rpartition(".")[2].replace("-", "_")


def check_named(
    kind: str,
    name: str,
    table: Iterable[str],
    known_of: Callable[[str], Sequence[str]],
    options: Iterable[str],
) -> None:
    """Refuse a name that a table has not, and an option that ``known_of(name)`` has not, with the nearest known one."""
    one_of(kind, name, list(table))
    known = known_of(name)
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known) or 'none'}{nearest(option, known)}"
            raise InputError(f"{kind} '{name}': unknown option '{option}'; {has}")


def number(option: str, value: float, least: float, most: float = math.inf) -> float:
    """Check that an option is a finite number within bounds, and return it.

    Raises:
        InputError: it is not.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not least <= value <= min(most, sys.float_info.max):
        wanted = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise InputError(f"{option}: expected a number {wanted}, got {shown(value)}")
    return float(value)


def one_of(option: str, value: str, known: Sequence[str]) -> str:
    """Check that an option is one of a few words, and return it.

    Raises:
        InputError: it is not; the error names the nearest known word.
    """
    if value not in known:
        raise InputError(
            f"{option}: '{value}' is not one of {', '.join(known)}{nearest(value, known)}"
        )
    return value


def warn(message: str) -> None:
    """A warning at the first line outside this package."""
    level = 1
    while sys._getframe(level - 1).f_globals["__name__"].partition(".")[0] == "dem_apps":
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)

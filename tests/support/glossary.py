"""What docs/metrics.md explains. The tests of segmentation and of reinforcement learning compare their runs with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def explained(section: str) -> set[str]:
    """The keys that a section explains, such as ``Segmentation: `eval.json```; each with a unit and a range."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", _PAGE.read_text(), flags=re.S | re.M)
    found: list[str] = []
    for row in re.findall(r"^\| (`.+)\|$", text, flags=re.M):
        names, meaning, unit = (cell.strip() for cell in row.split(" | "))
        assert len(meaning) > 3, f"{names}: what does it mean?"
        assert len(unit) > 3, f"{names}: in which unit, from where to where?"
        found += re.findall(r"`([^`]+)`", names)
    assert len(found) == len(set(found)), "a key is explained twice"
    return set(found)


def keys_of(document: dict[str, Any], *opened: str) -> set[str]:
    """The keys of a JSON document; those of the mappings named in ``opened`` as ``mapping.key``."""
    within = {f"{name}.{key}" for name in opened for key in document[name]}
    return (set(document) - set(opened)) | within

"""The keys that docs/metrics.md describes, to compare with those of runs."""

import re
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def explained(section: str) -> set[str]:
    """The keys that the list items of a section begin with, such as those of ``Segmentation: `eval.json```."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", _PAGE.read_text(), flags=re.S | re.M)
    rows = re.findall(r"^- (`.+?`): ", text, flags=re.M)
    found = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(found) == len(set(found)), "a key is described twice"
    return set(found)


def keys_of(document: dict[str, Any], *opened: str) -> set[str]:
    """The keys of a JSON document; those of the mappings named in ``opened`` as ``mapping.key``."""
    within = {f"{name}.{key}" for name in opened for key in document[name]}
    return (set(document) - set(opened)) | within

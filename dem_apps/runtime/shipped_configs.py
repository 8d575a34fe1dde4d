"""The settings files that come with the package, found from any folder: by name, or as ``configs/seg/NAME.yaml``.

``dem_apps/configs`` is a link to the repository's ``configs``, and in a wheel a copy of it; a clone may lack the link.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
CONFIGS = next(
    (folder for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if folder.is_dir()), _PACKAGE / "configs"
)


def shipped(application: str) -> dict[str, Path]:
    """The files of an application, ``seg`` or ``rl``, by name."""
    return {file.stem: file for file in sorted((CONFIGS / application).glob("*.yaml"))}


def found(value: str) -> Path:
    """The file of that path; where there is none here, and it begins with ``configs/``, the one that was shipped."""
    path = Path(value)
    if not path.exists() and path.parts[:1] == (CONFIGS.name,) and ".." not in path.parts:
        ours = CONFIGS.joinpath(*path.parts[1:])
        if ours.is_file():
            return ours
    return path

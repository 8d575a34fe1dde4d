"""Domain-adaptive segmentation: networks adapted to unlabelled images with entropy objectives."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dem_apps.runtime.command import command_needs

command_needs(
    "seg", "jsonargparse", "rich", "segmentation_models_pytorch", "albumentations", "accelerate"
)

if TYPE_CHECKING:
    from seg.models.networks import build_model
    from seg.trained.open import load

#: Modules of the public names. A name is imported on first use, so that `import seg` takes no time.
_HOMES = {"build_model": "seg.models.networks", "load": "seg.trained.open"}

__all__ = ["build_model", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'seg' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

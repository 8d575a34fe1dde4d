"""Where files that can be made again are kept: the built kernel and the demo pair."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``$DEM_APPS_CACHE``, else ``$XDG_CACHE_HOME/dem-apps``, else ``~/.cache/dem-apps``."""
    own = os.environ.get("DEM_APPS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dem-apps"

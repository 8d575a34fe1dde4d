"""Which processor a benchmark's numbers belong to."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> tuple[str, list[str]]:
    """Its name, and the instructions that it has where Linux lists them."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return info.get("model name") or platform.processor() or platform.machine(), info.get("flags", "").split()

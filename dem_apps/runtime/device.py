"""Which torch device a ``--device`` flag means, and which processor this is."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

from dem_apps.errors import passed_on


def torch_device(name: str) -> torch.device:
    """The device of that name, else an InputError; ``auto`` is a GPU where torch finds one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    with passed_on(f"--device: torch cannot use '{name}' here; take cpu, or auto"):
        return torch.empty(0, device=name).device


def processor() -> tuple[str, list[str]]:
    """Its name, and the instructions that it has where Linux lists them."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    info = dict(re.findall(r"^(.*?)\s*: (.*)$", text, re.MULTILINE))
    name = info.get("model name") or platform.processor() or platform.machine()
    instructions = info.get("flags") or info.get("Features", "")  # of x86, of ARM
    return name, instructions.split()

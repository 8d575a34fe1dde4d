"""Decoded, resized copies of images and labels: reading one is far cheaper than decoding a PNG and resizing it.

A copy is one file of raw pixels that says about itself which version of the original it was made from and carries a
checksum, so there is no list that could disagree with the files. The version is size, time of modification, and the
file system's own time of change, which ``tar`` and ``rsync -t`` do not set back. A copy is written under another name
and renamed: whatever is interrupted, it is whole or missing. One that is missing, damaged or older than its original is
not used, and the original is decoded instead: the pixels are right in any case.
Labels are kept as the ids of their data set, so a copy serves every class set.
"""

from __future__ import annotations

import hashlib
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.runtime.files import cache_dir, whole_file
from seg.data.image_io import cut

# 2: images are upright as their EXIF says
_MAGIC = b"dempix2\n"
# CRC-32 of all that follows it; size and times of modification and change (ns) of the original; height, width,
# channels (0: a label)
_CHECKED = struct.Struct("<8sI")
_HEADER = struct.Struct("<8sIQqqIII")


class ResizedCopies:
    """The copies of one data set at one size, under ``cache_dir()/resized``.

    Args:
        root: the data set's folder; its resolved path is part of the copies' folder.
        layout: its layout, which decides how labels are decoded.
        size: (width, height) that was resized to; None for the files' own.
    """

    def __init__(self, root: Path, layout: str, size: tuple[int, int] | None) -> None:
        self._root = root
        digest = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:10]
        name = "native" if size is None else f"{size[0]}x{size[1]}"
        self.folder = cache_dir() / "resized" / f"{layout}-{cut(root.name)}-{digest}" / name
        self._warned = False

    def path(self, original: Path) -> Path:
        """Where the copy of a file is, whether it exists or not."""
        relative = original.relative_to(self._root)
        return self.folder / relative.with_name(cut(relative.name) + ".raw")

    def read(self, original: Path) -> NDArray[np.uint8] | None:
        """Pixels of the copy, (H, W, 3) or (H, W), read-only; None where there is none that can be trusted.

        A copy that is damaged or older than its original is worth one warning.
        """
        path = self.path(original)
        try:
            content = path.read_bytes()
            made_from = original.stat()
        except OSError:
            return None
        pixels = unpacked(content, made_from)
        if pixels is None and not self._warned:
            self._warned = True
            warnings.warn(
                f"{path}: this copy is damaged or older than its original, which is decoded instead; "
                "`python -m seg.data cache` makes it anew (further ones are not named)",
                stacklevel=2,
            )
        return pixels

    def write(self, original: Path, pixels: NDArray[np.uint8], made_from: os.stat_result) -> None:
        """Keep a copy.

        Args:
            original: the file that was decoded.
            pixels: (H, W, 3) or (H, W) uint8.
            made_from: its ``stat()`` from before it was decoded.

        Raises:
            InputError: the disk is full; copies that were written are intact.
        """
        path = self.path(original)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            temporary.write_bytes(packed(pixels, made_from))


def packed(pixels: NDArray[np.uint8], made_from: os.stat_result) -> bytes:
    """The content of a copy."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 0
    header = _HEADER.pack(_MAGIC, 0, *_version(made_from), height, width, channels)
    rest = header[_CHECKED.size :] + np.ascontiguousarray(pixels).tobytes()
    return _CHECKED.pack(_MAGIC, zlib.crc32(rest)) + rest


def unpacked(content: bytes, made_from: os.stat_result) -> NDArray[np.uint8] | None:
    """The pixels of a copy; None where it is damaged or made from another version of its original."""
    if len(content) < _HEADER.size:
        return None
    magic, checksum, *version, height, width, channels = _HEADER.unpack_from(content)
    if magic != _MAGIC or zlib.crc32(memoryview(content)[_CHECKED.size :]) != checksum:
        return None
    if tuple(version) != _version(made_from):
        return None
    shape = (height, width, channels) if channels else (height, width)
    return np.frombuffer(content, np.uint8, offset=_HEADER.size).reshape(shape)


def _version(original: os.stat_result) -> tuple[int, int, int]:
    return original.st_size, original.st_mtime_ns, original.st_ctime_ns

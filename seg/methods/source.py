"""Training on labelled source images alone: where every adaptation starts from."""

from __future__ import annotations

from seg.methods.method import Method


class SourceOnly(Method):
    """No target image is read; batch normalisation sees none either, unlike with ``--loss none``."""

"""Checks and errors of the encoders of segmentation-models-pytorch and timm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import segmentation_models_pytorch as smp
import timm

from dem_apps.errors import InputError, nearest, passed_on


def check_encoder(encoder: str) -> None:
    """Raises an InputError for a name that is not known, before the library looks for it elsewhere."""
    known = smp.encoders.get_encoder_names()
    if encoder not in known and not encoder.startswith("tu-"):
        raise InputError(f"encoder: '{encoder}' is not known to segmentation-models-pytorch{nearest(encoder, known)}")
    if encoder.startswith("tu-") and not timm.is_model(encoder[3:].partition(".")[0]):
        # timm would also take the name of a folder, or of a repository that it then downloads
        raise InputError(f"encoder: '{encoder}' is no network of timm")


@contextmanager
def encoder_errors(network: str, encoder: str, weights: str | None) -> Iterator[None]:
    """Around the building of a ``network``: a library's error about a name, option or weights becomes one sentence."""
    check_encoder(encoder)
    try:
        with passed_on(network):
            yield
    except InputError as error:
        if weights is not None and isinstance(error.__cause__, OSError | RuntimeError):
            raise InputError(
                f"encoder '{encoder}': the '{weights}' weights could not be loaded ({error}); without a network or a "
                "cached copy, start from random weights with --model.encoder-weights null"
            ) from error
        raise

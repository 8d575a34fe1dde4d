"""Encoders of segmentation-models-pytorch and timm: which names are taken, and what goes wrong while one is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import segmentation_models_pytorch as smp
import timm

from dem_apps.errors import InputError, nearest


@contextmanager
def encoder_errors(network: str, encoder: str, weights: str | None) -> Iterator[None]:
    """Around the making of a network: a name, an option or weights that cannot be had are one sentence.

    Args:
        network: what is made, with its options, for the sentence.
        encoder: its encoder's name; looked at before anything is made.
        weights: name of the pretrained weights that are fetched meanwhile.

    Raises:
        InputError: an encoder that is not known, or what the library says against the options or the weights.
    """
    known = smp.encoders.get_encoder_names()
    if encoder not in known and not encoder.startswith("tu-"):
        raise InputError(f"encoder: '{encoder}' is not known to segmentation-models-pytorch{nearest(encoder, known)}")
    if encoder.startswith("tu-") and not timm.is_model(encoder[3:].partition(".")[0]):
        # timm would also take the name of a folder, or of a repository that it then downloads
        raise InputError(f"encoder: '{encoder}' is no network of timm")
    try:
        yield
    except InputError:
        raise
    except (KeyError, ValueError, NotImplementedError) as error:
        raise InputError(f"{network}: {error.args[0] if error.args else type(error).__name__}") from error
    except (OSError, RuntimeError) as error:
        if weights is None:
            raise
        raise InputError(
            f"encoder '{encoder}': the '{weights}' weights could not be loaded ({type(error).__name__}); without a "
            "network or a cached copy, start from random weights with --model.encoder-weights null"
        ) from error

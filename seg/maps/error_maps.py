"""Where a prediction is wrong, over the faded image, and where it is wrong without a doubt.

Shapes: C classes, H × W pixels of the label.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seg.data.labels import IGNORE_INDEX

#: Below this share of log C a pixel counts as certain: with 19 classes, two of them at 91 % and 9 % are at 0.1.
CERTAIN = 0.1
#: Grey of the image's black and of its white behind the wrong pixels: light, since most colours of classes are dark.
_FADED = (180, 245)


def wrong_pixels(
    image: NDArray[np.uint8],
    label: NDArray[np.uint8],
    prediction: NDArray[np.uint8],
    coloured: NDArray[np.uint8],
    entropy: NDArray[np.float32],
) -> dict[str, NDArray[np.uint8]]:
    """Two pictures, each of a light grey image on which pixels have the colour of the class that was predicted.

    Args:
        image: (h, w, 3) RGB, of any size.
        label: (H, W) train ids; pixels of ``IGNORE_INDEX`` are never wrong.
        prediction: (H, W) train ids.
        coloured: (H, W, 3) the same in colours.
        entropy: (H, W), 0 to 1.

    Returns:
        (H, W, 3) ``wrong``, all that differ from the label, and ``confidently-wrong``, those below :data:`CERTAIN`.
    """
    grey = Image.fromarray(image).convert("L").resize((label.shape[1], label.shape[0]), Image.Resampling.BILINEAR)
    faded = np.repeat(_light(np.asarray(grey))[..., None], 3, axis=2)
    wrong = (prediction != label) & (label != IGNORE_INDEX)
    certain = wrong & (entropy < CERTAIN)
    return {
        name: np.where(shown[..., None], coloured, faded)
        for name, shown in (("wrong", wrong), ("confidently-wrong", certain))
    }


def _light(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    black, white = _FADED
    return (black + grey / 255 * (white - black)).astype(np.uint8)

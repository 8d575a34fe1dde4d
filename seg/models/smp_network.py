"""Every architecture of segmentation-models-pytorch, by its name there, as a network of this project.

Shapes: B batch, C classes, H × W the images' size, h × w that of the decoder's output.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import segmentation_models_pytorch as smp
from torch import Tensor
from torch.nn import functional as F

from dem_apps.errors import InputError, nearest
from seg.models.encoders import encoder_errors
from seg.models.network import SegmentationNetwork

#: The names that the library has for what all networks here call so.
_NAMES = {"depth": "encoder_depth", "output_stride": "encoder_output_stride"}
#: Set by the adapter itself; a classification head and an activation have no place here.
_NOT_OPTIONS = ("encoder_name", "encoder_weights", "in_channels", "classes", "activation", "aux_params", "upsampling")
#: By which its ``save_pretrained`` names the architecture in ``config.json``.
_CLASS_KEY = "_model_class"
#: Said by the adapter itself, where such a file says it too.
_NOT_OPTIONS_OF_CONFIG = (*_NOT_OPTIONS, "dynamic_img_size")
#: A side of the encoder's last features below which a decoder fails: PAN's halves them three times.
_LEAST_FEATURES = {"pan": 8}
#: DPT makes a pyramid of a vision transformer's features, whose coarsest level has a stride of its own.
_PYRAMID_STRIDE = {"dpt": 32}
#: Of the encoder: a vision transformer that takes images of any size, where timm's can.
_ENCODER_OPTIONS = {"dpt": {"dynamic_img_size": True}}


class SmpNetwork(SegmentationNetwork):
    """One of the library's networks, without the upsampling behind its head.

    ``state_dict`` has the library's own names, so that weights go from here to a network of
    :func:`segmentation_models_pytorch.create_model` and back.

    Images of a size that the architecture does not take, such as one that is no multiple of 32, are continued beyond
    their right and lower edge by their last pixels, and the logits there are cut off.

    Args:
        architecture: a key of ``segmentation_models_pytorch.MODEL_ARCHITECTURES_MAPPING``.
        encoder: see :class:`seg.models.deeplabv2.DeepLabV2`; ``dpt`` takes vision transformers of timm alone.
        num_classes: C.
        weights: name of pretrained encoder weights such as ``imagenet``, or None for a random start.
        bands: of the images.
        options: ``depth`` and ``output_stride`` where the architecture has them, and its further arguments by the
            library's names, such as ``decoder_attention_type="scse"``; the library's defaults for the rest.

    Raises:
        InputError: an option that the architecture does not have, a value or an encoder that it does not take, or
            weights that cannot be had.
    """

    def __init__(
        self,
        architecture: str,
        encoder: str,
        num_classes: int,
        weights: str | None = None,
        *,
        bands: int = 3,
        **options: Any,
    ) -> None:
        super().__init__()
        parameters = inspect.signature(smp.MODEL_ARCHITECTURES_MAPPING[architecture]).parameters
        arguments = _arguments(architecture, parameters, options)
        if bands != 3:
            arguments["in_channels"] = bands
        with encoder_errors(f"model: {architecture} with encoder {encoder}", encoder, weights):
            network = _created(architecture, encoder, num_classes, weights, arguments)
        self.encoder, self.decoder = network.encoder, network.decoder
        self.segmentation_head = network.segmentation_head
        if hasattr(network.segmentation_head, "upsampling_factor"):  # of dpt, which no argument sets
            network.segmentation_head.upsampling_factor = 1.0
        #: By which the library itself makes such a network.
        self.architecture, self.arguments = architecture, {"encoder_name": encoder, **arguments}
        self.encoder_options = _ENCODER_OPTIONS.get(architecture, {})
        self._name = f"{architecture} with encoder {encoder}"
        stride: int = network.encoder.output_stride
        coarsest = _PYRAMID_STRIDE.get(architecture, stride)
        if coarsest % stride:
            raise InputError(f"encoder: {encoder} has patches of {stride} pixels, and {architecture} takes 8, 16 or 32")
        self._divisor = coarsest if network.requires_divisible_input_shape else 1
        self._least = _LEAST_FEATURES.get(architecture, 0) * stride

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised images → ``main`` (B, C, h, w).

        Raises:
            InputError: a batch that the network cannot take, such as a single image where batch normalisation
                averages over the batch alone.
        """
        padded = self._padded(images)
        try:
            features = self.encoder(padded)
            # a vision transformer's features come with its prefix tokens
            decoded = self.decoder(*features) if isinstance(features, tuple) else self.decoder(features)
            logits = self.segmentation_head(decoded)
        except (AssertionError, ValueError) as error:
            batch, _, height, width = images.shape
            raise InputError(
                f"model: {self._name} cannot take {batch} images of {width} × {height}: {error}"
            ) from error
        rows, columns = (
            -(-part * side // whole)  # rounded up
            for part, side, whole in zip(logits.shape[2:], images.shape[2:], padded.shape[2:], strict=True)
        )
        return {"main": logits[:, :, :rows, :columns]}

    def _padded(self, images: Tensor) -> Tensor:
        below, right = (max(-side % self._divisor, self._least - side) for side in images.shape[2:])
        return F.pad(images, (0, right, 0, below), mode="replicate") if below or right else images


#: The architectures by name, taken from the library.
SMP_NETWORKS = {name: partial(SmpNetwork, name) for name in smp.MODEL_ARCHITECTURES_MAPPING}


def is_smp(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` looks like one of the library's ``save_pretrained``."""
    return _CLASS_KEY in config or "encoder_name" in config


def outputs_of(config: Mapping[str, Any], where: str) -> int:
    """The number of outputs per pixel that a ``config.json`` of the library says.

    Raises:
        InputError: it is no number, or none.
    """
    outputs = config.get("classes", 1)
    if not isinstance(outputs, int) or outputs < 1:
        raise InputError(f"{where}: classes is {outputs!r:.50}; expected a number from 1 on")
    return outputs


def network_of_config(config: Mapping[str, Any], num_classes: int, where: str, bands: int | None = None) -> SmpNetwork:
    """The network of the library's ``config.json`` with random weights and as many classes.

    Args:
        config: its content.
        num_classes: C, which may be another than the file's.
        where: what to call the file in errors.
        bands: of the images, which may be another number than the file's; None is the file's.

    Raises:
        InputError: an architecture, an encoder or an option that is not known.
    """
    names = {architecture.__name__: name for name, architecture in smp.MODEL_ARCHITECTURES_MAPPING.items()}
    named = config.get(_CLASS_KEY)
    if named not in names:
        raise InputError(
            f"{where}: {_CLASS_KEY} is '{named}'{nearest(str(named), names)}; expected one of {', '.join(names)}, as "
            "save_pretrained of segmentation-models-pytorch 0.4 and later writes it"
        )
    channels = config.get("in_channels", 3) if bands is None else bands
    if not isinstance(channels, int) or channels < 1:
        raise InputError(f"{where}: in_channels is {channels!r:.50}; expected a number from 1 on")
    ours = {theirs: name for name, theirs in _NAMES.items()}
    options = {
        ours.get(name, name): value
        for name, value in config.items()
        if not name.startswith("_") and name not in _NOT_OPTIONS_OF_CONFIG
    }
    ours_alone = sorted(options.keys() & inspect.signature(SmpNetwork).parameters.keys())
    if ours_alone:
        raise InputError(f"{where}: {ours_alone[0]} is no key of segmentation-models-pytorch's")
    try:
        return SmpNetwork(
            names[named], str(config.get("encoder_name", "resnet34")), num_classes, None, bands=channels, **options
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _arguments(
    architecture: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options under the library's names, without upsampling behind the head, with widths for every stage."""
    ours = {theirs: name for name, theirs in _NAMES.items()}
    known = [ours.get(name, name) for name in parameters if name not in (*_NOT_OPTIONS, "kwargs")]
    for name in options:
        if name not in known:
            raise InputError(f"model: {architecture} has no {name}; its options are {', '.join(known)}")
    arguments = {_NAMES.get(name, name): value for name, value in options.items()}
    depth, usual = arguments.get("encoder_depth"), parameters["encoder_depth"].default
    for name, parameter in parameters.items():
        if depth is not None and isinstance(parameter.default, tuple) and len(parameter.default) == usual:
            arguments.setdefault(name, parameter.default[-depth:])  # one width per stage: those of the finest
    return arguments | ({"upsampling": 1} if "upsampling" in parameters else {})


def _created(architecture: str, encoder: str, num_classes: int, weights: str | None, arguments: dict[str, Any]) -> Any:
    """The library's network; Any, since its parts are attributes that nn.Module knows no types of."""
    extra = _ENCODER_OPTIONS.get(architecture, {})
    try:
        return smp.create_model(architecture, encoder, weights, classes=num_classes, **arguments, **extra)
    except TypeError as error:
        if not extra:
            raise
        # the options of timm's networks differ
        raise InputError(
            f"encoder: {architecture} needs a vision transformer of timm that takes images of any size, such as "
            f"tu-vit_base_patch16_224, and {encoder} is none"
        ) from error

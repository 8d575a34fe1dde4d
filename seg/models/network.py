"""The interface that training, scores and exports use of a network."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from dem_apps.errors import passed_on

#: Says of a ``config.json`` that a network here wrote it, and in which version of the format.
OUR_KEY, OUR_VERSION = "dem_apps_network", 1
_CARD = "---\n{{ card_data }}\n---\n\nA network for semantic segmentation; `seg.load` of dem-apps opens its folder.\n"


class SegmentationNetwork(
    nn.Module, PyTorchModelHubMixin, library_name="dem-apps", tags=["semantic-segmentation"], model_card_template=_CARD
):  # fmt: skip
    """(B, 3, H, W) images, RGB or bands in the run's normalisation → logits (B, C, h, w) by head.

    ``encoder`` is the part that learns at the plain rate and may start from pretrained weights. huggingface_hub's mixin
    brings ``save_pretrained(folder)``, ``from_pretrained(folder)`` of the class, and ``push_to_hub(name)``.

    >>> import tempfile, torch, seg
    >>> network = seg.build_model("deeplabv2", encoder="resnet18", num_classes=4).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     network.save_pretrained(folder)
    ...     again = type(network).from_pretrained(folder)
    >>> images = torch.rand(1, 3, 64, 96)
    >>> torch.equal(again(images)["main"], network(images)["main"])
    True
    """

    #: Its key in :data:`seg.models.NETWORKS`, for ``config.json``; not used where a library saves in its own format.
    name: ClassVar[str] = ""
    #: The keys of the logits: ``main``, which is scored and exported, and ``aux`` where there is an auxiliary head.
    heads: ClassVar[tuple[str, ...]] = ("main",)
    encoder: nn.Module

    def save_pretrained(self, save_directory: str | Path, *, config: Any = None, **options: Any) -> str | None:
        """As the mixin does; ``config.json`` says what :func:`seg.build_model` takes, and ``config`` besides."""
        arguments: Any = self._hub_mixin_config
        own = {OUR_KEY: OUR_VERSION, "name": self.name, **(arguments or {}), "weights": None, **(config or {})}
        return super().save_pretrained(save_directory, config=own, **options)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: Any = None, **options: Any) -> Any:
        with passed_on(model_id), redirect_stdout(io.StringIO()):  # the mixin says that it loads
            return super()._from_pretrained(model_id=model_id, **{"strict": True, **options}).eval()


def parameter_groups(model: nn.Module, lr: float, head_factor: float, repeats: str = "none") -> list[dict[str, Any]]:
    """The groups of an optimiser: the parameters of ``model.encoder`` at ``lr``, all others at ``head_factor * lr``.

    ``base_lr`` holds the rate that a schedule multiplies. The repeats ``advent`` group the encoder's parameters by the
    number of modules below the encoder that each is in: 1 for ``conv1``, 3 in a block, 4 in its shortcut. ADVENT lists
    them as often (``get_1x_lr_params_no_scale`` of its ``deeplabv2.py``).
    """
    inside = {id(parameter): name.count(".") for name, parameter in model.get_submodule("encoder").named_parameters()}
    encoder: dict[int, list[nn.Parameter]] = {}
    heads: list[nn.Parameter] = []
    for parameter in model.parameters():
        if id(parameter) not in inside:
            heads.append(parameter)
        else:
            encoder.setdefault(inside[id(parameter)] if repeats == "advent" else 1, []).append(parameter)
    groups: list[dict[str, Any]] = [{"params": encoder[times], "base_lr": lr, "repeats": times} for times in encoder]
    return [*groups, {"params": heads, "base_lr": lr * head_factor, "repeats": 1}]

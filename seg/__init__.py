"""Domain-adaptive segmentation: DeepLab-V2 with entropy objectives on unlabelled target images."""

from dem_apps.runtime.extras import command_needs

command_needs("seg")

from seg.models.deeplabv2 import build_model  # noqa: E402

__all__ = ["build_model"]

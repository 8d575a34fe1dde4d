"""Domain-adaptive segmentation: networks adapted to unlabelled images with entropy objectives."""

from dem_apps.runtime.extras import command_needs

command_needs("seg")

from seg.models import build_model  # noqa: E402

__all__ = ["build_model"]

"""Domain-adaptive segmentation: DeepLab-V2 with entropy objectives on unlabelled target images."""

from seg.models import build_model

__all__ = ["build_model"]

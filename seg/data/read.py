"""Readers of one image or label file, by the names that scripts use."""

from seg.data.read_images import read_header, read_image
from seg.data.read_labels import read_index_image, read_label

__all__ = ["read_header", "read_image", "read_index_image", "read_label"]

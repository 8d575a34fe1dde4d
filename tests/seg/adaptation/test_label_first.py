"""The list of images to label first."""

import numpy as np

from seg.adaptation.images import ImageNumbers
from seg.adaptation.result import label_first


def row(pixels, entropy, labelled=False):
    return ImageNumbers(np.array(pixels), entropy, np.eye(3, dtype=np.int64) if labelled else None)


def test_uncertain_images_unlike_those_above_come_first():
    rows = {
        "sure": row([5, 5, 0], 0.1), "unsure": row([9, 1, 0], 0.5), "its twin": row([9, 1, 0], 0.49),
        "other": row([0, 2, 8], 0.3), "labelled": row([0, 0, 10], 0.9, True),
    }  # fmt: skip
    listed = label_first(rows)
    assert [each["image"] for each in listed] == ["unsure", "other", "sure", "its twin"]
    assert listed[0]["reason"] == "mean entropy 0.500, of the folder 0.347"
    assert listed[1]["reason"].endswith("; 90% of its pixels are of other classes than in those above")
    assert label_first({"a": row([1, 0, 0], 0.5, True)}) == []

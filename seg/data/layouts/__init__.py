"""Layouts of known data sets: one file each says where images and labels lie and what the ids mean.

A new layout is a file and an entry here: docs/howto/add_a_layout.md.
"""

from __future__ import annotations

from seg.data.layouts.camvid import CAMVID, CAMVID_DAY, CAMVID_DUSK
from seg.data.layouts.cityscapes import CITYSCAPES
from seg.data.layouts.folders import FOLDERS
from seg.data.layouts.gta5 import GTA5
from seg.data.layouts.layout import Layout
from seg.data.layouts.synthia import SYNTHIA

LAYOUTS: dict[str, Layout] = {
    "gta5": GTA5,
    "cityscapes": CITYSCAPES,
    "synthia": SYNTHIA,
    "camvid": CAMVID,
    "camvid-day": CAMVID_DAY,
    "camvid-dusk": CAMVID_DUSK,
    "folders": FOLDERS,
}

"""A normalisation that nobody gave: chosen by labels; without labels it is said what speaks for another."""

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from support.pictures import save

from seg.adapt import adapt

GUESSED = {"mean": None, "std": None}


def adapted(config, name, **changes):
    out = Path(str(config.out)).with_name(name)
    adapt(replace(config, method="none", out=str(out), **changes))
    return json.loads((out / "adapt.json").read_text()), out


def test_labels_find_it_before_anything_is_adapted(config):
    """They are what the network predicts of images that are seen otherwise than is guessed."""
    _, out = adapted(config, "said", mean=[0.5] * 3, std=[0.5] * 3)
    for file in (out / "before").rglob("*_pred_labelIds.png"):
        label = str(file.relative_to(out / "before")).replace("_pred_labelIds", "")
        save(out.with_name("own") / label, np.asarray(Image.open(file)))
    found, out = adapted(config, "guess", labels=str(out.with_name("own")), **GUESSED)
    assert found["normalisation"]["mean"] == [0.5] * 3
    assert found["normalisation"]["origin"] == "chosen of the usual ones by 9 labelled images"
    tried = {row["name"]: row["labels"] for row in found["normalisation"]["tried"]}
    assert max(tried, key=lambda name: tried[name]["after"]) == "0.5"
    assert found["labels"]["before"] == 1.0  # the baseline is the best
    assert "scores higher: on 9 labelled images" in found["answer"]
    page = (out / "report.html").read_text()
    assert "RGB from 0 to 1, mean 0.5 0.5 0.5, deviation 0.5 0.5 0.5 (chosen of the usual ones" in page


def test_without_labels_both_leads_are_said(config, capsys):
    found, out = adapted(config, "guess", **GUESSED)
    assert found["normalisation"]["origin"].startswith("a guess: ")
    trial = found["normalisation"]["trial"]
    assert "stability score" in trial
    assert "distance" in trial
    for where in (capsys.readouterr().out, (out / "report.html").read_text()):
        assert trial in html.unescape(where)
    said = adapted(config, "said")[0]["normalisation"]
    assert (said["trial"], said["origin"]) == ("", "the user")
    wrong, _ = adapted(config, "wrong", scale=255, **GUESSED)
    assert "ALARM, wrong scale: as RGB from 0 to 255, mean 0 0 0, deviation 1 1 1 (the user)" in wrong["answer"]

"""Folders of transformers: the library's own prediction, and its image processor."""

import json

import numpy as np
import pytest
import torch
from support import cases, refuses
from support.trained_networks import assert_comes_back, open_trained


def segformer(folder, **settings):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1] * 4}
    config = transformers.SegformerConfig(
        **sizes, decoder_hidden_size=16, **{"num_labels": 4, **settings}
    )
    network = transformers.SegformerForSemanticSegmentation(config).eval()
    network.save_pretrained(folder)
    transformers.SegformerImageProcessor(
        image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25], size={"height": 32, "width": 48}
    ).save_pretrained(folder)
    return network


@torch.no_grad()
def test_transformers_folder_gives_the_librarys_own_prediction(tmp_path):
    network = segformer(tmp_path / "hf", id2label={0: "soil", 1: "crop", 2: "weed", 3: "crop"})
    opened = open_trained(str(tmp_path / "hf"))
    from transformers import SegformerImageProcessor

    processor = SegformerImageProcessor.from_pretrained(tmp_path / "hf", do_resize=False)
    image = np.random.default_rng(0).integers(0, 256, (48, 80, 3)).astype(np.uint8)
    given = processor(image, return_tensors="pt")["pixel_values"]
    ours = opened.description.normalised(image)[None]
    torch.testing.assert_close(ours, given, rtol=1e-5, atol=1e-5)
    expected = processor.post_process_semantic_segmentation(
        network(given), target_sizes=[(48, 80)]
    )[0]
    assert torch.equal(opened.logits(given)[0].argmax(0), expected)
    assert (opened.num_classes, opened.description.size) == (4, (48, 32))
    assert opened.description.classes.names == ("soil", "crop", "weed", "crop_2")
    opened = assert_comes_back(opened, tmp_path / "adapted")
    adapted = type(network).from_pretrained(tmp_path / "adapted")(given).logits
    torch.testing.assert_close(adapted, opened.raw_logits(given))


#: Files of image processors, what they mean by scale, mean, deviation and order, and the note on what they do not say.
PROCESSORS = {
    "a key that its class leaves out": (
        {"image_processor_type": "MobileViTImageProcessor", "image_mean": [0.5] * 3},
        (0, 1, "bgr"),
        "",
    ),
    "as published": ({"feature_extractor_type": "MobileViTFeatureExtractor"}, (0, 1, "bgr"), ""),
    "labels": (
        {"image_processor_type": "BeitImageProcessor", "do_reduce_labels": True},
        (0.5, 0.5, "rgb"),
        "",
    ),
    "no file": (
        None,
        (0.485, 0.229, "rgb"),
        "a guess: ImageNet's",
    ),
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_a_processor_is_read_in_the_sense_of_its_library(kind, tmp_path):
    said, (mean, std, order), note = PROCESSORS[kind]
    segformer(tmp_path / "hf")
    file = tmp_path / "hf" / "preprocessor_config.json"
    file.unlink() if said is None else file.write_text(json.dumps(said))
    opened = open_trained(str(tmp_path / "hf"))
    description = opened.description
    found = description.pixels.mean[0], description.pixels.std[0]
    assert (*(round(each, 6) for each in found), description.order) == (mean, std, order)
    assert note in " ".join((description.origin, *description.notes))
    if kind == "labels":  # id 0 is no class, and id k is output k - 1
        assert (opened.class_set.ids, opened.class_set.ignored) == ((1, 2, 3, 4), (0,))
    assert_comes_back(opened, tmp_path / "adapted")


@cases(
    ({"model_type": "bert", "num_attention_heads": 1}, "Unrecognized configuration class"),
    ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}, "custom code"),
    ({"depths": [2, 1, 1, 1]}, "its weights do not fit its config.json: .*missing_keys"),
)
def test_transformers_folders_that_do_not_fit(change, message, tmp_path):
    segformer(tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refuses(message, open_trained, str(tmp_path / "hf"))


def test_transformers_never_asks_the_network_for_a_backbone(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    import huggingface_hub.constants as hub

    seen = []
    segformer(tmp_path)
    original = transformers.AutoModelForSemanticSegmentation.from_pretrained.__func__

    def spied(cls, *arguments, **options):
        seen.append((hub.HF_HUB_OFFLINE, options["local_files_only"], options["trust_remote_code"]))
        return original(cls, *arguments, **options)

    monkeypatch.setattr(
        transformers.AutoModelForSemanticSegmentation, "from_pretrained", classmethod(spied)
    )
    before = hub.HF_HUB_OFFLINE
    open_trained(str(tmp_path))
    assert seen == [(True, True, False)]
    assert before == hub.HF_HUB_OFFLINE

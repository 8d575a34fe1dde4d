"""TPT of CLIP's prompt, with a tiny CLIP of random weights."""

import json
import re
import runpy

import pytest
import torch
from PIL import Image
from support import ROOT

transformers = pytest.importorskip("transformers")
SCRIPT = runpy.run_path(str(ROOT / "examples" / "clip_prompts.py"))
CLASSES = ["cat", "dog", "zebra"]
IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a CLIP whose tokens are letters."""
    folder, letters = tmp_path_factory.mktemp("clip"), "abcdefghijklmnopqrstuvwxyz."
    tokens = [
        *letters,
        *(letter + "</w>" for letter in letters),
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    (folder / "vocab.json").write_text(
        json.dumps({token: index for index, token in enumerate(tokens)})
    )
    (folder / "merges.txt").write_text("#version: 0.2\n")
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ids = {
        "vocab_size": len(tokens),
        "bos_token_id": len(tokens) - 2,
        "eos_token_id": len(tokens) - 1,
    }
    seen = {"image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(
        text_config=sizes | ids, vision_config=sizes | seen, projection_dim=16
    )
    torch.manual_seed(0)
    transformers.CLIPModel(config).save_pretrained(folder)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    texts = transformers.CLIPTokenizerFast.from_pretrained(folder, local_files_only=True)
    transformers.CLIPProcessor(images, texts).save_pretrained(folder)
    return folder


@pytest.fixture
def clip(folder):
    return transformers.CLIPModel.from_pretrained(folder).eval()


@pytest.fixture
def tokenizer(folder):
    return transformers.CLIPProcessor.from_pretrained(folder).tokenizer


def test_logits_are_those_of_the_written_prompt(clip, tokenizer):
    texts = tokenizer(
        [f"a photo of a {name}." for name in CLASSES], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        theirs = clip(**texts, pixel_values=IMAGE).logits_per_image
        model = SCRIPT["PromptedCLIP"](clip, tokenizer, CLASSES)
        torch.testing.assert_close(model(IMAGE), theirs, atol=1e-5, rtol=1e-5)
        assert model.context.shape == (len("aphotoofa"), 32)


def test_only_the_context_learns_and_each_image_begins_anew(clip, tokenizer):
    model = SCRIPT["PromptedCLIP"](clip, tokenizer, CLASSES)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    adapter = SCRIPT["adapted"](model)
    with torch.no_grad():
        plain = model(IMAGE)
    prediction = adapter(IMAGE)
    assert (prediction - plain).abs().max() > 1e-3
    assert [
        name for name, value in model.state_dict().items() if not torch.equal(value, first[name])
    ] == ["context"]
    adapter(IMAGE.flip(2))
    assert torch.equal(adapter(IMAGE), prediction)
    adapter.reset()
    assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())


def test_the_command(folder, monkeypatch, capsys):
    photo = folder / "photo.png"
    Image.effect_noise((48, 40), 80).save(photo)
    arguments = ["--model", str(folder), "--classes", *CLASSES, "--images", str(photo), str(photo)]
    monkeypatch.setattr("sys.argv", ["clip_prompts.py", *arguments])
    SCRIPT["main"]()
    first, second = capsys.readouterr().out.splitlines()
    assert first == second  # nothing is left of the image before
    assert re.fullmatch(rf"{photo}: (\w+ 0\.\d\d), adapted (\w+ 0\.\d\d)", first)

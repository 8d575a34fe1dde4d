"""TPT as published (Shu et al., NeurIPS 2022): CLIP's prompt learns from each image before the image is predicted.

    pip install -e ".[hf]"
    python examples/clip_prompts.py --model models/clip --classes cat dog bird --images photos/*.jpg

The model is a folder with what ``save_pretrained`` of transformers' ``CLIPModel`` and ``CLIPProcessor`` writes; nothing
is downloaded. Printed for each image: its class by CLIP as it is, and by the adapted prompt. Every image encodes the
texts of all classes four times, once for gradients: with 1,000 classes and CLIP ViT-B/16 that takes 5 GB.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from dem_apps import TestTimeAdapter


class PromptedCLIP(nn.Module):
    """(B, 3, H, W) images → (B, C) logits; ``context``, (n, D), holds the embeddings of the prompt's n tokens.

    The given CLIP has this prompt from then on.
    """

    def __init__(
        self, clip: Any, tokenizer: Any, classes: list[str], prompt: str = "a photo of a"
    ) -> None:
        super().__init__()
        self.clip = clip
        texts = [f"{prompt} {name}." for name in classes]
        tokens = tokenizer(texts, padding=True, return_tensors="pt").input_ids.to(clip.device)
        self.register_buffer("tokens", tokens, persistent=False)
        length = len(tokenizer(prompt).input_ids) - 2  # without the start and the end
        embedding = clip.text_model.embeddings.token_embedding
        self.context = nn.Parameter(embedding(tokens[0, 1 : 1 + length]).detach())
        embedding.register_forward_hook(self._with_context)

    # (C, tokens, D)
    def _with_context(self, _embedding: nn.Module, _tokens: Any, embedded: Tensor) -> Tensor:
        context = self.context.expand(len(embedded), -1, -1)
        return torch.cat([embedded[:, :1], context, embedded[:, 1 + len(self.context) :]], 1)

    def forward(self, images: Tensor) -> Tensor:
        """The texts are encoded anew, with gradients to the context."""
        logits: Tensor = self.clip(input_ids=self.tokens, pixel_values=images).logits_per_image
        return logits


def adapted(model: PromptedCLIP) -> TestTimeAdapter:
    """The published settings; ``adapter(images)`` takes one image."""
    return TestTimeAdapter(
        model,
        "tpt",
        "entropy",
        lr=5e-3,
        optimizer="adamw",
        parameters="^context$",
        episodic=True,
        predict="after",
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--classes", nargs="+", required=True)
    parser.add_argument("--images", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    if not options.model.is_dir():
        parser.error(f"--model: there is no folder {options.model}")

    from transformers import CLIPModel, CLIPProcessor

    processor = CLIPProcessor.from_pretrained(options.model, local_files_only=True)
    clip = CLIPModel.from_pretrained(options.model, local_files_only=True)
    model = PromptedCLIP(clip, processor.tokenizer, options.classes)
    adapter = adapted(model)
    for file in options.images:
        images = processor(images=Image.open(file).convert("RGB"), return_tensors="pt").pixel_values
        adapter.reset()
        with torch.no_grad():
            predictions = model(images).softmax(1)[0], adapter(images).softmax(1)[0]
        before, after = (
            f"{options.classes[int(p.argmax())]} {float(p.max()):.2f}" for p in predictions
        )
        print(f"{file}: {before}, adapted {after}")


if __name__ == "__main__":
    main()

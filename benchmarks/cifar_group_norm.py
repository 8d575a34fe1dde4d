"""ResNet-20 without batch norm, on the images of ``benchmarks/cifar_corruptions.py``.

    python benchmarks/cifar_group_norm.py --clones CLONES

puts group norm (8 channels a group) in the place of the batch norm of akamaster's network, keeping scales and shifts,
and trains 10 epochs on the training images: some 25 minutes. The weights go to ``CLONES/resnet20_group_norm.pt``; the
last line is the accuracy on the clean test images.
"""

from pathlib import Path

import cifar_corruptions
import numpy as np
import torch
from cifar_corruptions import BATCH, CLASSES, IMAGES, RATES, corrupted, network_input, photographs, source
from csv_rows import parser_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

__all__ = [
    "BATCH", "BN_ALPHA", "CLASSES", "IMAGES", "RATES", "classifier", "corrupted", "network_input", "photographs",
    "source",
]  # fmt: skip

BN_ALPHA = ""
EPOCHS, RATE, TRAIN_BATCH = 10, 0.05, 128


def classifier(clones: Path) -> nn.Module:
    """The trained network in ``eval()`` mode."""
    model = with_group_norm(cifar_corruptions.classifier(clones))
    model.load_state_dict(torch.load(clones / "resnet20_group_norm.pt", weights_only=True))
    return model.eval()


def with_group_norm(model: nn.Module) -> nn.Module:
    """The same network; batch norm's scales and shifts stay, its statistics go."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                norm = nn.GroupNorm(child.num_features // 8, child.num_features)
                norm.weight, norm.bias = child.weight, child.bias
                setattr(parent, name, norm)
    return model


def augmented(images_BCHW: Tensor) -> Tensor:
    """Mirrored by chance, and shifted by up to four pixels."""
    down, right = torch.randint(9, (2,)).tolist()
    images_BCHW = pad(images_BCHW, (4, 4, 4, 4))[..., down : down + 32, right : right + 32]
    mirrored = torch.rand(len(images_BCHW), 1, 1, 1) < 0.5
    return torch.where(mirrored, images_BCHW.flip(3), images_BCHW)


def main() -> None:
    """The command."""
    parser = parser_of(__doc__, "clones")
    clones = parser.parse_args().clones
    torch.manual_seed(0)
    model = with_group_norm(cifar_corruptions.classifier(clones)).to(memory_format=torch.channels_last).train()
    images, classes = (np.stack(each) for each in photographs(clones, "train"))
    labels, steps = torch.from_numpy(classes), EPOCHS * (len(images) // TRAIN_BATCH)
    sgd = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, RATE, steps, pct_start=0.2)
    for epoch in range(EPOCHS):
        for index in torch.randperm(len(images))[: steps // EPOCHS * TRAIN_BATCH].split(TRAIN_BATCH):
            inputs = augmented(network_input(images[index.numpy()]))
            loss = cross_entropy(model(inputs.to(memory_format=torch.channels_last)), labels[index])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss of its last batch {loss.item():.3f}", flush=True)
    torch.save(model.state_dict(), clones / "resnet20_group_norm.pt")
    images, classes = (np.stack(each) for each in photographs(clones))
    with torch.inference_mode():
        found = torch.cat([
            model.eval()(network_input(part)).argmax(1) for part in np.array_split(images, 50)
        ])  # fmt: skip
    print(f"accuracy {100 * (found == torch.from_numpy(classes)).double().mean():.1f} %")


if __name__ == "__main__":
    main()

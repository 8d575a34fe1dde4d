"""DeYO against a loop written from the paper."""

import math

import pytest
import torch
from support.tiny_networks import (
    CLASSES,
    assert_same,
    batches,
    entropy_of,
    moved,
    published,
    tented,
    tiny,
)

from dem_apps.test_time_methods.deyo import DeYO

LR, PLPD = 0.05, 0.05


def shuffled_plainly(image, order, n):
    """Patch i of the result is patch order[i] of the image, both counted by rows."""
    result = torch.empty_like(image)
    side = image.shape[1] // n
    for place, source in enumerate(order):
        (row, column), (from_row, from_column) = divmod(place, n), divmod(source, n)
        patch = image[
            :,
            from_row * side : (from_row + 1) * side,
            from_column * side : (from_column + 1) * side,
        ]
        result[:, row * side : (row + 1) * side, column * side : (column + 1) * side] = patch
    return result


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("dense", [True, False])
def test_deyo_is_the_papers(norm, dense):
    model = tiny(norm, dense)
    expected = tented(model)
    entropies = torch.cat([entropy_of(expected(images)) for images in batches(6)]).detach()
    t_ent = entropies.quantile(0.8).item()
    e0 = 0.4 * math.log(CLASSES)
    adapter = published(model, "deyo", lr=LR, seed=3, entropy_margin=t_ent, plpd_above=PLPD)
    draws = torch.Generator().manual_seed(3)
    steps = torch.optim.SGD(expected.norm.parameters(), LR, momentum=0.9)
    numbers = []
    for images in batches(6):
        logits = expected(images)
        h = entropy_of(logits)
        sure = h < t_ent
        again = [i for i in range(4) if sure[i].any()]
        orders = [torch.randperm(16, generator=draws).tolist() for _ in again]
        mixed = torch.stack(
            [shuffled_plainly(images[i], order, 4) for i, order in zip(again, orders, strict=True)]
        )
        p, other = logits.softmax(1).detach(), torch.zeros_like(logits)
        other[again] = expected(mixed).softmax(1).detach()
        label = p.argmax(1, keepdim=True)
        plpd = (p.gather(1, label) - other.gather(1, label)).squeeze(1)
        kept = sure & (plpd > PLPD)
        numbers.append((int(sure.sum()), int(kept.sum())))
        if kept.any():
            values = h * ((e0 - h.detach()).exp() + plpd.exp())
            steps.zero_grad()
            values[kept].mean().backward()
            steps.step()
        adapter(images)
    assert any(0 < kept < sure for sure, kept in numbers), numbers
    assert moved(model, tiny(norm, dense))
    assert_same(model, expected, rtol=1e-7)


def test_sides_that_patches_do_not_divide():
    assert DeYO(patches=4).shuffled(torch.rand(2, 3, 9, 13), torch.Generator()).shape == (
        2,
        3,
        9,
        13,
    )

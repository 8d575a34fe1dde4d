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
@pytest.mark.parametrize(
    ("dense", "filter_by"), [(True, "element"), (True, "image"), (False, "image")]
)
def test_deyo_is_the_papers(norm, dense, filter_by):
    model, by_image = tiny(norm, dense), dense and filter_by == "image"
    expected = tented(model)
    entropies = torch.cat([entropy_of(expected(images)) for images in batches(6)]).detach()
    t_ent = (entropies.mean((1, 2)) if by_image else entropies).quantile(0.8).item()
    above = 0.3 if by_image else PLPD
    e0 = 0.4 * math.log(CLASSES)
    adapter = published(
        model, "deyo", lr=LR, seed=3, filter_by=filter_by, entropy_margin=t_ent, plpd_above=above
    )
    draws = torch.Generator().manual_seed(3)
    steps = torch.optim.SGD(expected.norm.parameters(), LR, momentum=0.9)
    numbers = []
    for images in batches(6):
        logits = expected(images)
        h = entropy_of(logits)
        judged = h.mean((1, 2)) if by_image else h
        sure = judged < t_ent
        again = [i for i in range(4) if sure[i].any()]
        orders = [torch.randperm(16, generator=draws).tolist() for _ in again]
        mixed = torch.stack(
            [shuffled_plainly(images[i], order, 4) for i, order in zip(again, orders, strict=True)]
        )
        p, other = logits.softmax(1).detach(), torch.zeros_like(logits)
        other[again] = expected(mixed).softmax(1).detach()
        label = p.argmax(1, keepdim=True)
        plpd = (p.gather(1, label) - other.gather(1, label)).squeeze(1)
        plpd = plpd.mean((1, 2)) if by_image else plpd
        kept = sure & (plpd > above)
        numbers.append((int(sure.sum()), int(kept.sum())))
        if kept.any():
            values = judged * ((e0 - judged.detach()).exp() + plpd.exp())
            if by_image:
                coefficient = ((e0 - judged.detach()).exp() + plpd.exp())[:, None, None]
                values = (h * coefficient).mean((1, 2))
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

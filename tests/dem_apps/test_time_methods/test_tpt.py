"""TPT against the loss of its paper, written out; what its views are."""

import pytest
import torch
from support.refusals import refuses
from support.tiny_networks import batches, published, tiny

from dem_apps.test_time_methods.tpt import TPT


def papers_loss(logits, kept):
    """Eq. 3: the entropy of the mean probability of the views of lowest entropy, (N, C) logits."""
    p = logits.softmax(1)
    entropy = -(p * p.log()).sum(1)
    chosen = p[entropy.argsort()[: int(kept * len(p))]].mean(0)
    return -(chosen * chosen.log()).sum()


def test_a_step_is_the_papers():
    (images,) = batches(1, size=1)
    model, expected = tiny("group", dense=False), tiny("group", dense=False)
    adapter = published(model, "tpt", lr=0.05, views=10, kept=0.3)
    views, mirrored = TPT(views=10).drawn(images[0], torch.Generator().manual_seed(0), dense=False)
    assert 0 < mirrored.sum() < 10
    papers_loss(expected(views), 0.3).backward()
    with torch.no_grad():
        for parameter in expected.norm.parameters():
            parameter -= 0.05 * parameter.grad
    torch.testing.assert_close(adapter(images), tiny("group", dense=False)(images).detach())
    for name, value in model.norm.named_parameters():
        torch.testing.assert_close(value, getattr(expected.norm, name))


def test_views_of_dense_logits_lie_on_each_other():
    """Of a network that sees each pixel alone, mirrored views give the image's own prediction."""
    (images,) = batches(1, size=1)
    views, mirrored = TPT(views=6).drawn(images[0], torch.Generator().manual_seed(1), dense=True)
    back = torch.where(mirrored[:, None, None, None], views.flip(3), views)
    torch.testing.assert_close(back[0], images[0])
    for view in back[1:]:
        scale = (view - view.mean()).norm() / (images[0] - images[0].mean()).norm()
        torch.testing.assert_close(view, images[0] * scale + (view - images[0] * scale).mean())
        assert 0.8 <= scale <= 1.2


@pytest.mark.parametrize("options", [{"views": 0}, {"views": True}, {"kept": 1.5}])
def test_options_are_refused(options):
    refuses(next(iter(options)), TPT, **options)

"""Self-training: its step against a plain loop, its teacher, pseudo-labels and views against what the papers say."""

import copy
import dataclasses

import pytest
import torch
from support import same
from support.training_steps import MODEL, assert_close, fresh, full_size, micro_batch
from torch.nn import functional as F

from seg.config import TrainConfig
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD
from seg.methods import self_training
from seg.methods.optimization import MicroBatch
from seg.methods.self_training import (
    SelfTrainingConfig,
    generators,
    hidden,
    pasted_pixels,
    pseudo_labels,
    recoloured,
)
from seg.methods.settings import OptimizerConfig, WeightConfig
from seg.training.step import training_step

PLAIN = SelfTrainingConfig(threshold=0.4)
BASE = TrainConfig(
    method="self-training",
    loss="none",
    max_steps=10,
    self_training=PLAIN,
    model=dataclasses.replace(MODEL, batch_norm="target"),
    optimizer=OptimizerConfig(name="sgd", lr=0.02, horizon=20, momentum=0.0, weight_decay=0.0),
    weights=WeightConfig(aux=0.3),
)


@pytest.fixture
def no_colours(monkeypatch):
    """Views without jitter and blur, which are tested by themselves."""
    monkeypatch.setattr(self_training, "recoloured", lambda images, *_: images)


def fresh_with(**settings):
    own = {
        key: settings.pop(key)
        for key in list(settings)
        if key in SelfTrainingConfig.__dataclass_fields__
    }
    return fresh(
        dataclasses.replace(BASE, self_training=dataclasses.replace(PLAIN, **own), **settings)
    )


def plain_step(student, teacher, batch, step):
    """DACS for one batch, written out; the first three steps of a teacher whose decay is 0.5."""
    rate = 0.02 * (1 - (step - 1) / 20) ** 0.9
    student.train()
    maps = full_size(student(batch.source["image"]))
    label = batch.source["label"]
    loss = F.cross_entropy(maps["main"], label, ignore_index=255)
    loss = loss + 0.1 * F.cross_entropy(maps["aux"], label, ignore_index=255)
    with torch.no_grad():
        teacher.train()
        probability, pseudo = full_size(teacher(batch.target["image"]))["main"].softmax(1).max(1)
    images, labels, weights = [], [], []
    for i, draws in enumerate(batch.target["draw"]):
        region = pasted_pixels(label[i : i + 1], generators(draws[None], 2))[0]
        share = (probability[i] >= 0.4).float().mean()
        images.append(torch.where(region, batch.source["image"][i], batch.target["image"][i]))
        labels.append(torch.where(region, label[i], pseudo[i]))
        weights.append(torch.where(region, torch.tensor(1.0), share))
    maps = full_size(student(torch.stack(images)))
    for head, factor in (("main", 1.0), ("aux", 0.3)):
        pixels = F.cross_entropy(maps[head], torch.stack(labels), reduction="none")
        loss = loss + factor * (pixels * torch.stack(weights)).mean()
    student.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter -= rate * parameter.grad
        kept = min(1 - 1 / step, 0.5)
        for averaged, parameter in zip(teacher.parameters(), student.parameters(), strict=True):
            averaged.copy_(kept * averaged + (1 - kept) * parameter)


@pytest.mark.usefixtures("no_colours")
def test_three_steps_equal_a_plain_loop():
    ours = fresh_with(teacher_decay=0.5)
    student = copy.deepcopy(ours.model).to(memory_format=torch.contiguous_format)
    teacher = copy.deepcopy(student)
    for step in range(1, 4):
        training_step(ours, [micro_batch(step)])
        plain_step(student, teacher, micro_batch(step), step)
    assert_close(dict(student.named_parameters()), dict(ours.model.named_parameters()), 2e-4, 2e-6)
    assert_close(ours.method.scored_model().state_dict(), teacher.state_dict(), 2e-4, 5e-6)


def test_the_teacher_is_an_average_of_its_own_and_is_scored():
    state = fresh_with()
    assert isinstance(state.method, self_training.SelfTraining)
    first = training_step(state, [micro_batch(0)])
    # after the first step it is the student, afterwards it lags behind
    teacher, student = (
        dict(model.named_parameters()) for model in (state.method.scored_model(), state.model)
    )
    assert all(torch.equal(value, student[name]) for name, value in teacher.items())
    training_step(state, [micro_batch(1)])
    assert any(not torch.equal(value, student[name]) for name, value in teacher.items())
    assert not any(value.requires_grad for value in teacher.values())
    saved = state.state()
    assert same(saved["model"], state.method.scored_model().state_dict())
    assert same(saved["trained_model"], state.model.state_dict())
    assert 0 <= first["target/pseudo_label_weight"] <= 1


def test_statistics_of_the_teacher_follow_the_policy():
    """Those of the target alone by the batches that it labels, those of the source as an average of the student's."""
    models = (dataclasses.replace(BASE.model, batch_norm=policy) for policy in ("target", "source"))
    of_target, of_source = (fresh_with(model=model) for model in models)

    def mean(network):
        return network.state_dict()["encoder.bn1.running_mean"].clone()

    students = []
    for step in range(2):
        training_step(of_target, [micro_batch(step)])
        training_step(of_source, [micro_batch(step)])
        students.append(mean(of_source.model))
    averaged = mean(of_source.method.scored_model())
    torch.testing.assert_close(averaged, sum(students) / 2)
    assert not torch.allclose(mean(of_target.method.scored_model()), averaged, atol=1e-3)


def test_without_a_teacher_the_student_labels_for_itself():
    state = fresh_with(teacher_decay=0.0)
    training_step(state, [micro_batch(0)])
    assert state.method.scored_model() is state.model
    assert "trained_model" not in state.state()


def test_the_objective_counts_on_target_pixels_alone():
    state = fresh_with(loss="entropy", reduction="mean")
    seen = []
    state.method.objectives.forward = lambda logits, mask: (seen.append(mask), (None, {}))[1]
    state.method.target_loss(micro_batch(0))
    pasted = pasted_pixels(
        micro_batch(0).source["label"], generators(micro_batch(0).target["draw"], 2)
    )
    assert torch.equal(seen[0], ~pasted)


def test_pixels_count_as_the_share_of_sure_ones():
    logits = torch.tensor([[[[9.0, 9.0, 0.0, 1.0]], [[0.0, 0.0, 0.1, 0.0]]]])
    label, weight = pseudo_labels(logits, 0.9)
    assert label.tolist() == [[[0, 0, 1, 0]]]
    assert weight.tolist() == [[[0.5] * 4]]


def test_half_of_the_classes_are_pasted():
    label = torch.tensor([[0, 1, 2, 3, 4, 255]]).repeat(2, 6, 1)
    chosen = set()
    for draw in range(30):
        region = pasted_pixels(label, generators(torch.tensor([draw, draw + 99]), 0))
        for one in region:
            assert torch.equal(one, one[:1].expand_as(one))  # whole classes
            assert one[0, :5].sum() == 3
            assert not one[0, 5]
        chosen.add(tuple(region[0, 0].tolist()))
    assert len(chosen) > 5


def test_colours_change_within_the_papers_strengths():
    mean, std = (torch.tensor(each)[:, None, None] for each in (IMAGENET_MEAN, IMAGENET_STD))
    grey = ((torch.full((40, 3, 8, 8), 0.5) - mean) / std).float()
    changed = recoloured(grey, generators(torch.arange(40), 0)) * std + mean
    levels = changed.mean((1, 2, 3))
    assert 0.39 < float(levels.min()) < 0.45  # brightness and contrast by at most a fifth
    assert 0.55 < float(levels.max()) < 0.61
    same = float((levels - 0.5).abs().lt(1e-6).float().mean())
    assert 0.05 < same < 0.4  # a fifth is left as it is


def test_hidden_blocks_are_whole_and_of_the_share():
    images = torch.ones(30, 3, 35, 64)
    kept = hidden(images, 0.7, generators(torch.arange(30), 0))[:, 0]
    side = 4
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    blocks = (
        kept[:, : 35 // side * side, : 64 // side * side]
        .unfold(1, side, side)
        .unfold(2, side, side)
    )
    assert set(blocks.mean((3, 4)).unique().tolist()) == {0.0, 1.0}
    assert 0.25 < float(kept.mean()) < 0.35


@pytest.mark.parametrize("width", [32, 96])
def test_source_of_another_size_is_pasted_around_the_centre(width):
    batch = micro_batch(0)
    images = F.interpolate(batch.target["image"], (32, width))
    state = fresh_with(loss="entropy", reduction="mean")
    seen = []
    state.method.objectives.forward = lambda logits, mask: (seen.append(mask), (None, {}))[1]
    state.method.target_loss(MicroBatch(batch.source, {**batch.target, "image": images}))
    label = torch.full((2, 32, 96), IGNORE_INDEX)
    label[..., 16:80] = batch.source["label"]  # 64 of the widest image's 96 columns
    margin = (96 - width) // 2
    expected = pasted_pixels(label[..., margin : 96 - margin], generators(batch.target["draw"], 2))
    assert expected.any()
    assert torch.equal(seen[0], ~expected)

"""Class marginals that start from predictions; of several processes in test_several_processes.py."""

import copy
import io

import pytest
import torch
from support import refuses
from support.tiny_networks import CLASSES, LEARNING, adapter_of, batches, moved, tiny

from dem_apps import OBJECTIVE_NAMES, AdaDEM, build_objective

C = 5
UNIFORM = torch.full((C, C), 1 / C)
WITH_MARGINALS = ("adadem", "adadem-mec")


def logits_of(*shape, seed=0):
    """Class 4 is never predicted."""
    logits = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    logits.select(1, 4).sub_(20)
    return logits


def mean_predictions(rows):
    """Class by class, (N, C) logits."""
    p, table = rows.double().softmax(1), UNIFORM.double().clone()
    for k in rows.argmax(1).unique():
        table[k] = p[rows.argmax(1) == k].mean(0)
    return table


def near(objective, expected):
    torch.testing.assert_close(objective.class_marginals.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", WITH_MARGINALS)
def test_rows_are_mean_predictions_over_all_batches(name, backend):
    objective, first, second = (
        build_objective(name, C, backend=backend),
        logits_of(2, C, 6, 7),
        logits_of(3, C, 6, 7),
    )
    rows = [each.movedim(1, -1).reshape(-1, C) for each in (first, second)]
    objective.start(first)
    near(objective, mean_predictions(rows[0]))
    assert torch.equal(objective.class_marginals[4], UNIFORM[4])
    objective.start(second, further=True)
    near(objective, mean_predictions(torch.cat(rows)))
    objective.eval().start(second)
    near(objective, mean_predictions(rows[1]))
    mask = torch.rand(2, 6, 7) < 0.5
    objective.start(first.movedim(1, -1), dim=-1, mask=mask)
    near(objective, mean_predictions(rows[0][mask.flatten()]))
    objective.start(first, mask=mask & False)
    assert torch.equal(objective.class_marginals, UNIFORM)


def test_forbidden_classes_have_no_part():
    logits, forbidden = logits_of(40, C), torch.zeros(1, C, dtype=torch.bool)
    forbidden[0, 1] = True
    expected = mean_predictions(logits.masked_fill(forbidden, -torch.inf))
    for arguments in ((logits, 1, None, forbidden), (logits.masked_fill(forbidden, -torch.inf),)):
        objective = AdaDEM(C)
        objective.start(*arguments)
        near(objective, expected)


@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_reset_and_state_go_back_to_the_start(name):
    objective, logits = build_objective(name, C), logits_of(30, C)
    objective.start(logits)
    started = copy.deepcopy(objective.state_dict())
    assert set(started) == ({"class_marginals", "start_sums"} if name in WITH_MARGINALS else set())
    objective(logits_of(30, C, seed=1))
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    file.seek(0)
    loaded = build_objective(name, C)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for each in (objective, loaded, copy.deepcopy(loaded)):
        each.reset()
        assert all(torch.equal(value, started[key]) for key, value in each.state_dict().items())
        each.half().reset()  # keeps float32
        torch.testing.assert_close(
            dict(each.state_dict()), dict(started), check_dtype=False, rtol=1e-6, atol=1e-6
        )
    fresh = build_objective(name, C)
    loaded.load_state_dict(fresh.state_dict())
    loaded.reset()
    assert all(torch.equal(value, UNIFORM) for value in loaded.state_dict().values())


def test_what_cannot_start_leaves_the_table_alone():
    objective = AdaDEM(C)
    nan = torch.full((2, C), torch.nan)
    for logits, said in ((torch.zeros(2, C + 1), r"\(2, 6\)"), (nan, "a prediction is NaN")):
        refuses(said, objective.start, logits)
    assert torch.equal(objective.class_marginals, UNIFORM)


@pytest.mark.parametrize("method", LEARNING)
def test_an_adapter_starts_at_its_first_batch_or_at_images(method):
    first, second = batches(2)
    started, uniform = adapter_of(method, seed=1), adapter_of(method, marginals="uniform", seed=1)
    for adapter in (started, uniform):
        adapter(first)
    assert "start_sums" in started.objective.state_dict()
    assert "start_sums" not in uniform.objective.state_dict()
    assert moved(started.model, uniform.model)
    begun = copy.deepcopy(started.objective.state_dict())
    started.reset()
    assert "start_sums" not in started.objective.state_dict()
    started(first)
    assert all(
        torch.equal(value, begun[key]) for key, value in started.objective.state_dict().items()
    )
    given = adapter_of(method, seed=1)
    for images in (first, second):
        given.start(images)
    assert not moved(given.model, tiny())
    expected = AdaDEM(CLASSES)
    with torch.no_grad():
        for images in (first, second):
            expected.start(adapter_of("bn")(images), further=True)
    table = given.objective.class_marginals.clone()
    torch.testing.assert_close(table, expected.class_marginals)
    given(first)
    resumed = adapter_of(method, seed=1)
    resumed.load_state_dict(given.state_dict())
    for adapter in (given, resumed):
        adapter.reset()
        assert torch.equal(adapter.objective.class_marginals, table)


def test_marginals_that_cannot_be_started_are_one_sentence():
    (images,) = batches(1)
    refuses(
        "marginals: 'unifrom' is not one of .* did you mean 'uniform'",
        adapter_of,
        "tent",
        marginals="unifrom",
    )
    refuses("method 'bn': minimises nothing", adapter_of("bn").start, images)
    refuses("method 'bn': minimises nothing", getattr, adapter_of("bn"), "objective")
    known = adapter_of("tent", num_classes=CLASSES)
    assert known.objective.class_marginals.shape == (CLASSES, CLASSES)
    refuses("a prediction is NaN", adapter_of("tent").start, images * torch.nan)
    adapter_of("tent", objective="entropy").start(images)  # has none

"""Names, options and error sentences."""

import inspect

import pytest
import torch
from support import cases, refuses
from support.collision import Collision, CollisionBelowAdaDEM

import dem_apps
from dem_apps import DEM, OBJECTIVE_NAMES, build_objective
from dem_apps.entropy import ObjectiveSpec
from dem_apps.errors import InputError
from dem_apps.objectives import objective_class, objective_options

C = 4


def test_names_are_the_promised_ones():
    promised = (
        "entropy",
        "cadf",
        "dem",
        "adadem",
        "adadem-norm",
        "adadem-mec",
        "max-squares",
        "info-max",
        "robust-entropy",
        "come",
    )
    assert promised == OBJECTIVE_NAMES
    assert {objective_class(name).__name__ for name in promised} <= set(dem_apps.__all__)


def test_defaults_are_the_papers():
    objective = build_objective("adadem", C)
    assert objective.spec == ObjectiveSpec("mec", tau=1.0, alpha=1.0, norm="l1", delta="cadf")
    assert objective.momentum == 0.1
    assert objective.backend == "auto"


@cases(
    (("adadme", C), {}, r"objective: 'adadme' is not one of entropy, .*; did you mean 'adadem'\?"),
    (("adadem", C), {"momentun": 0.1}, r"unknown option 'momentun'; .*; did you mean 'momentum'\?"),
    (("entropy", C), {"alpha": 0.1}, r"objective 'entropy': unknown option 'alpha'; it has none$"),
    (("adadem", 1), {}, r"num_classes: expected an integer of at least 2, got 1$"),
    (("adadem", "19"), {}, r"num_classes: expected an integer of at least 2, got '19'$"),
    (("dem", C), {"tau": 0.0}, r"tau: expected a number from 1e-06 to 1e\+06, got 0\.0$"),
    (("dem", C), {"tau": 1e-300}, r"tau: expected a number from 1e-06 to 1e\+06, got 1e-300$"),
    (("adadem", C), {"alpha": 1e300}, r"alpha: expected a number from 0 to 1e\+06, got 1e\+300$"),
    (("dem", C), {"alpha": "1"}, r"alpha: expected a number from 0 to 1e\+06, got '1'$"),
    (("adadem", C), {"norm": "l3"}, r"norm: 'l3' is not one of l1, l2, linf"),
    (
        ("adadem", C),
        {"momentum": float("nan")},
        r"momentum: expected a number from 0 to 1, got nan$",
    ),
    (("adadem", C), {"balance": "half"}, r"balance: expected a number from 0 to 1, got 'half'$"),
)
def test_mistakes_when_building(arguments, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        build_objective(*arguments, **options)
    assert isinstance(raised.value, InputError)
    assert "\n" not in str(raised.value)


@cases(torch.zeros(2, C, dtype=torch.float64), torch.zeros(2, 257))
def test_compiled_says_what_it_cannot_do(logits):
    objective = build_objective("entropy", logits.shape[1], backend="compiled")
    refuses(
        r"backend: 'compiled' cannot serve torch\.float\d\d logits of .* use 'auto'",
        objective,
        logits,
    )
    build_objective("entropy", logits.shape[1])(logits)


@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_a_class_is_what_its_name_builds(name):
    made_of = objective_class(name)
    options = {
        option: inspect.signature(made_of).parameters[option].default
        for option in objective_options(name)
    }
    direct = made_of(num_classes=C, backend="eager", balance=0.5, **options)
    assert repr(direct) == repr(build_objective(name, C, "eager", 0.5))


@pytest.mark.parametrize("made_of", [Collision, CollisionBelowAdaDEM])
@pytest.mark.parametrize("backend", ["auto", "compiled", "eager", "reference"])
def test_one_equation_is_enough_in_every_backend(made_of, backend):
    objective = made_of(C, backend=backend)
    # enough for the fast forms
    logits = torch.randn(2, C, 90, 100, generator=torch.Generator().manual_seed(0))
    values = -logits.softmax(1).square().sum(1).log()
    mask, predicted = logits[:, 0] > 0, logits.argmax(1)
    torch.testing.assert_close(objective(logits), values.mean())
    torch.testing.assert_close(objective(logits, mask=mask), values[mask].mean())
    torch.testing.assert_close(objective(logits, mask=mask, reduction="sum"), values[mask].sum())
    by_class = torch.stack([values[predicted == k].mean() for k in range(C)])
    torch.testing.assert_close(objective(logits, reduction="balanced"), by_class.mean())
    torch.testing.assert_close(objective(logits, reduction="none"), values)
    one = torch.tensor([True, False, False, False]).view(1, C, 1, 1)
    of_three = -logits[:, 1:].softmax(1).square().sum(1).log().mean()
    torch.testing.assert_close(objective(logits, class_mask=one), of_three)
    torch.testing.assert_close(objective(logits.masked_fill(one, -torch.inf)), of_three)
    logits[0, 2, 5] = torch.inf  # p of the others is 0 there
    assert objective(logits).isnan()


@pytest.mark.parametrize(
    "build", [lambda: build_objective("dem", C, tau=3.0), lambda: DEM(C, tau=3.0)]
)
def test_the_warning_points_at_who_asked_for_it(build):
    with pytest.warns(UserWarning, match="tau = 3") as caught:
        build()
    assert caught[0].filename == __file__

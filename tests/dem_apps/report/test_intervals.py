"""Intervals, against printed tables of Student's t."""

import math
import statistics

import numpy as np
import pytest

from dem_apps.report.intervals import difference_interval, mean_band, mean_interval


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216)])
def test_the_mean_has_students_interval(freedom, expected):
    values = np.random.default_rng(freedom).normal(size=freedom + 1)
    interval = mean_interval(values.tolist())
    half = expected * statistics.stdev(values) / math.sqrt(freedom + 1)  # any printed table has the quantile
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-5)
    band = mean_band(np.stack([values, np.ones(freedom + 1)], axis=1))
    assert [float(end[0]) for end in band] == pytest.approx([interval.estimate, interval.low, interval.high], rel=1e-12)
    assert [float(end[1]) for end in band] == [1.0, 1.0, 1.0]


def test_intervals():
    paired = difference_interval({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 2.5})
    differences = [2.0, 3.0, 1.5]
    half = 4.30265 * statistics.stdev(differences) / math.sqrt(3)
    assert paired.estimate == pytest.approx(statistics.fmean(differences))
    assert paired.high == pytest.approx(paired.estimate + half, rel=1e-4)
    assert paired.excludes_zero
    welch = difference_interval({0: 1.0, 1: 2.0, 2: 3.0}, {7: 4.0, 8: 6.0, 9: 8.0})
    # variances 1 and 4: 50 / 17 = 2.941 degrees of freedom, whose quantile lies between those of 2 and 3
    assert -4 - 4.30265 * math.sqrt(5 / 3) < welch.low < -4 - 3.18245 * math.sqrt(5 / 3)
    assert welch.low == pytest.approx(-4 - 3.21839 * math.sqrt(5 / 3), rel=1e-3)
    alone = difference_interval({0: 1.0}, {0: 2.0})
    assert (alone.estimate, alone.low, alone.excludes_zero) == (-1.0, None, False)


def test_a_single_seed_is_compared_with_the_same_seed_of_the_other():
    control = {0: 2.0, 1: 5.0, 2: 8.0}
    for seed, expected in ((0, 1.0), (2, -5.0)):
        alone = difference_interval({seed: 3.0}, control)
        assert (alone.estimate, alone.low) == (expected, None)
        assert difference_interval(control, {seed: 3.0}).estimate == -expected
    unpaired = difference_interval({9: 3.0}, control)
    assert (unpaired.estimate, unpaired.low) == (-2.0, None)

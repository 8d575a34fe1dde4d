"""The methods of :class:`dem_apps.TestTimeAdapter` by name; the one place that lists them.

Another one is a file beside these with a subclass of :class:`dem_apps.test_time_methods.method.Method`, and a line in
the table. Its constructor's arguments are its options.
"""

from __future__ import annotations

import inspect
from typing import Any

from dem_apps.errors import check_named
from dem_apps.test_time_methods.bn import BatchStatistics
from dem_apps.test_time_methods.cotta import CoTTA
from dem_apps.test_time_methods.deyo import DeYO
from dem_apps.test_time_methods.eata import EATA
from dem_apps.test_time_methods.eta import ETA
from dem_apps.test_time_methods.lab import LabTransfer
from dem_apps.test_time_methods.method import Method
from dem_apps.test_time_methods.none import Unadapted
from dem_apps.test_time_methods.sar import SAR
from dem_apps.test_time_methods.tent import Tent

METHODS: dict[str, type[Method]] = {
    "none": Unadapted,
    "bn": BatchStatistics,
    "lab": LabTransfer,
    "tent": Tent,
    "eta": ETA,
    "eata": EATA,
    "sar": SAR,
    "deyo": DeYO,
    "cotta": CoTTA,
}


def build_method(name: str, **options: Any) -> Method:
    """A method by name.

    Raises:
        ValueError: an unknown name, option or value; the message names the nearest known one.
    """
    check_named("method", name, METHODS, method_options, options)
    return METHODS[name](**options)


def method_options(name: str) -> list[str]:
    """The options that ``TestTimeAdapter(model, method=name, …)`` takes besides its own.

    >>> method_options("bn")
    ['bn_alpha']
    """
    if METHODS[name].__init__ is object.__init__:
        return []
    return list(inspect.signature(METHODS[name]).parameters)

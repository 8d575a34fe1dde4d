"""The methods of :class:`dem_apps.TestTimeAdapter` by name.

No other place lists them. Another method is a file beside these with a subclass of
:class:`dem_apps.test_time_methods.method.Method`, and a line in the table. Its constructor's
arguments are its options. The table itself needs no torch, so that commands can refuse a wrong name
at once.
"""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from dem_apps.errors import check_named

if TYPE_CHECKING:
    from dem_apps.test_time_methods.method import Method


class MethodEntry(NamedTuple):
    """A method's module and class in this package, and whether it has parameters that learn."""

    place: str
    learns: bool = True


METHODS = {
    "none": MethodEntry("bn:Unadapted", learns=False),
    "bn": MethodEntry("bn:BatchStatistics", learns=False),
    "lab": MethodEntry("lab:LabTransfer", learns=False),
    "tent": MethodEntry("tent:Tent"),
    "eta": MethodEntry("eta:ETA"),
    "eata": MethodEntry("eta:EATA"),
    "sar": MethodEntry("sar:SAR"),
    "deyo": MethodEntry("deyo:DeYO"),
    "cotta": MethodEntry("cotta:CoTTA"),
}


def method_class(name: str) -> type[Method]:
    """The class of a method of :data:`METHODS`."""
    kind: type[Method] = resolve_name(f"dem_apps.test_time_methods.{METHODS[name].place}")
    return kind


def build_method(name: str, **options: Any) -> Method:
    """A method by name; a ValueError for an unknown name, option or value names the nearest known one."""
    check_named("method", name, METHODS, method_options, options)
    return method_class(name)(**options)


def method_options(name: str) -> list[str]:
    """The options that ``TestTimeAdapter(model, method=name, …)`` takes besides its own.

    >>> method_options("lab")
    ['source_mean', 'source_std', 'mean', 'std']
    """
    return list(inspect.signature(method_class(name)).parameters)

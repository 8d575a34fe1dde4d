"""The methods of :class:`dem_apps.TestTimeAdapter` by name.

No other place lists them. Another method is a file beside these with a subclass of
:class:`dem_apps.test_time_methods.method.Method`, and a line in one of the tables. Its constructor's
arguments are its options. The table itself needs no torch, so that commands can refuse a wrong name
at once.
"""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dem_apps.errors import check_named

if TYPE_CHECKING:
    from dem_apps.test_time_methods.method import Method


#: Methods that have parameters that learn: name → module in this package and class.
LEARNING_METHODS = {
    "tent": "tent:Tent",
    "eta": "eta:ETA",
    "eata": "eta:EATA",
    "sar": "sar:SAR",
    "deyo": "deyo:DeYO",
    "cotta": "cotta:CoTTA",
}
#: All methods.
METHODS = {
    "none": "bn:Unadapted",
    "bn": "bn:BatchStatistics",
    "lab": "lab:LabTransfer",
    **LEARNING_METHODS,
}


def method_class(name: str) -> type[Method]:
    """The class of a method of :data:`METHODS`."""
    kind: type[Method] = resolve_name(f"dem_apps.test_time_methods.{METHODS[name]}")
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

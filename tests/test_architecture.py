"""Import rules between the packages, names of modules, no cycles."""

import ast
from graphlib import TopologicalSorter

import pytest
from support import ROOT, imported_modules, imported_packages

PACKAGES = ("dem_apps", "seg", "rl")
MAY_IMPORT = {"dem_apps": {"dem_apps"}, "seg": {"seg", "dem_apps"}, "rl": {"rl", "dem_apps"}}
#: The root of a package has its commands and public names; everything else is in a folder below it.
ROOTS = {
    "dem_apps": {
        "__init__",
        "entropy",
        "errors",
        "objective",
        "objective_input",
        "reduction",
        "test_time",
    },
    "seg": {
        "__init__",
        "adapt",
        "benchmark",
        "config",
        "check",
        "convert",
        "evaluate",
        "export",
        "export_model",
        "train",
        "tune",
    },
    "rl": {"__init__", "benchmark", "config", "evaluate", "export", "plots", "train", "tune"},
}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_from_applications_to_the_core(path):
    package = path.relative_to(ROOT).parts[0]
    own = imported_packages(path.read_text(encoding="utf-8")) & (
        set(PACKAGES) | {"tests", "benchmarks"}
    )
    assert own <= MAY_IMPORT[package], (
        f"{path.relative_to(ROOT)} imports {sorted(own - MAY_IMPORT[package])}"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_the_root_of_a_package_has_commands_and_public_names(package):
    assert not {path.stem for path in SOURCES} & {
        "utils",
        "util",
        "helpers",
        "helper",
        "misc",
        "common",
    }
    assert {path.stem for path in (ROOT / package).glob("*.py")} == ROOTS[package]


#: Rooms, which are folders below seg and modules at its root, in the order in which they may import: each from itself
#: and from those before it.
ROOMS = (
    "data",
    "models",
    "methods",
    "scores",
    "config",
    "maps",
    "trained",
    "inference",
    "training",
    "adaptation",
    "adapt",
    "benchmark",
    "check",
    "convert",
    "evaluate",
    "export",
    "export_model",
    "train",
    "tune",
)


def test_rooms_import_from_rooms_before_them():
    order = {f"seg.{room}": place for place, room in enumerate(ROOMS)}
    wrong = set[str]()
    for path in SOURCES:
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts[:2])
        if own in order:
            for module in imported_modules(path.read_text(encoding="utf-8")):
                room = ".".join(module.split(".")[:2])
                if module.startswith("seg.") and order.get(room, len(order)) > order[own]:
                    wrong.add(f"{path.relative_to(ROOT)} imports {module}")
    inside = [
        path.relative_to(ROOT).with_suffix("").parts
        for path in SOURCES
        if (ROOT / "seg") in path.parents
    ]
    assert {".".join(parts[:2]) for parts in inside} - {"seg.__init__"} == set(order)
    assert not wrong, sorted(wrong)


def test_imports_have_no_cycle():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
    }
    arrows = {module: set[str]() for module in modules}
    for path in SOURCES:
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names} & modules
                arrows[own] |= (named or {node.module} & modules) - {own}
    assert set(TopologicalSorter(arrows).static_order()) == modules  # a CycleError names the cycle

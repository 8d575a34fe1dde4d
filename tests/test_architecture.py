"""Import rules between the packages, names of modules, no cycles."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.imports import imported_packages

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dem_apps", "seg", "rl")
MAY_IMPORT = {"dem_apps": {"dem_apps"}, "seg": {"seg", "dem_apps"}, "rl": {"rl", "dem_apps"}}
#: The root of a package has its commands and public names; everything else is in a folder below it.
ROOTS = {
    "dem_apps": {
        "__init__", "__main__", "entropy", "errors", "objective", "objective_input", "reduction", "test_time",
    },
    "seg": {
        "__init__", "__main__", "adapt", "benchmark", "config", "convert", "evaluate", "export", "export_model",
        "step", "train", "tune",
    },
    "rl": {"__init__", "__main__", "benchmark", "config", "evaluate", "export", "plots", "train", "tune"},
}  # fmt: skip
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_from_applications_to_the_core(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    own = imported_packages(path.read_text(encoding="utf-8")) & (set(PACKAGES) | {"tests", "benchmarks"})
    assert own <= MAY_IMPORT[package], f"{path.relative_to(ROOT)} imports {sorted(own - MAY_IMPORT[package])}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_root_of_a_package_has_commands_and_public_names(package: str) -> None:
    assert not {path.stem for path in SOURCES} & {"utils", "util", "helpers", "helper", "misc", "common"}
    assert {path.stem for path in (ROOT / package).glob("*.py")} == ROOTS[package]


def test_imports_have_no_cycle() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in SOURCES}
    arrows = {module: set[str]() for module in modules}
    for path in SOURCES:
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names} & modules
                arrows[own] |= (named or {node.module} & modules) - {own}
    assert set(TopologicalSorter(arrows).static_order()) == modules  # a CycleError names the cycle

"""The packages that a module needs, out of its source."""

from __future__ import annotations

import ast


def imported_packages(source: str) -> set[str]:
    """Top-level packages that a module names, wherever in the file; relative imports stay inside their own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            names = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            found |= {str(name).split(".")[0] for name in names}
    return found

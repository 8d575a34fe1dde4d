"""The modules and packages that a module needs, out of its source."""

import ast


def imported_modules(source: str) -> set[str]:
    """Full names of the modules that a source names, wherever in the file; relative imports stay inside their own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names if "." not in node.module)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            found |= {str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return found


def imported_packages(source: str) -> set[str]:
    """Top-level packages of :func:`imported_modules`."""
    return {name.split(".")[0] for name in imported_modules(source)}

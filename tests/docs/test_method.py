"""docs/method.md: its equations stand under the names of its table, and the default commands run through its files."""

import inspect
import re
import shlex
import sys
from importlib import import_module

import pytest
from support import ROOT

from dem_apps import OBJECTIVE_NAMES, AdaDEM
from dem_apps.fused.build_kernel import ONE_PASS, load_kernel
from dem_apps.fused.numpy_objective import KernelObjective
from dem_apps.objectives import objective_options
from seg.data.street.demo_pair import write_demo_pair

TEXT = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
#: The files with equations, as modules.
EQUATIONS = ["dem_apps.entropy"]
EQUATIONS += [
    f"dem_apps.objectives.{file.stem}" for file in (ROOT / "dem_apps" / "objectives").glob("*.py")
]


def documented():
    """Docstrings of the functions in these files, each with its file's."""
    found = {}
    for module in map(import_module, EQUATIONS):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                found[name] = f"{function.__doc__} {module.__doc__}"
    return found


def equations():
    """The rows of the table: the reference, and the backquoted words of both columns of names."""
    (table,) = [each for each in TEXT.split("\n\n") if each.startswith("| paper | formula |")]
    for line in table.splitlines()[2:]:
        _, reference, _, functions, options, _ = line.split("|")
        yield reference, re.findall(r"`([^`]+)`", functions), re.findall(r"`([^`]+)`", options)


def test_the_table_of_equations_names_functions_and_options():
    texts, by_name = documented(), {}
    for reference, functions, options in equations():
        assert set(functions) <= set(texts)
        # the code cites the same equation, section, or conference and year; of "Eq. 8–10" the last
        cited = re.findall(
            r"[A-Z]\w+\.? \d[\d.]*", re.sub(r"\d+–", "", reference).replace("Alg.", "Algorithm")
        )
        assert cited
        assert any(all(each in texts[name] for each in cited) for name in functions), reference
        if options:
            by_name[options[0]] = options[1:]
    assert by_name == {name: objective_options(name) for name in OBJECTIVE_NAMES}


class AtTheEquation(Exception):
    """Raised where a training has reached its equation."""


@pytest.fixture
def flags(tmp_path):
    """Flags that keep a command short and here."""
    roots = write_demo_pair(
        tmp_path / "demo", size=(96, 48), source_train=2, target_train=2, target_val=1
    )
    of_both = f"--device cpu --run-dir {tmp_path / 'run'}"
    return {
        "seg.train": f"{of_both} --max-steps 1 --source.root {roots / 'gta5'} --target.root {roots / 'cityscapes'}",
        "rl.train": f"{of_both} --timesteps 1024 --eval-episodes 1 --final-episodes 1",
    }


def stack_at_the_equation(module, arguments, monkeypatch):
    """Files and functions, outermost first, when a training calls the compiled equation for AdaDEM."""
    kernel = load_kernel()
    one_pass = kernel.pass_float32
    stack = []

    def reached(*passed):
        frame = sys._getframe(1)
        of_adadem = False
        while frame is not None:
            stack.insert(0, (frame.f_code.co_filename, frame.f_code.co_qualname))
            of_adadem |= isinstance(frame.f_locals.get("self"), (AdaDEM, KernelObjective))
            frame = frame.f_back
        if of_adadem:
            raise AtTheEquation
        stack.clear()  # the entropy that is logged
        return one_pass(*passed)

    monkeypatch.setattr(kernel, "pass_float32", reached)
    with pytest.raises(AtTheEquation):
        import_module(module).main(arguments)
    return stack


@pytest.mark.skipif(
    load_kernel() is None, reason="no C++ compiler here, and the page follows the compiled form"
)
@pytest.mark.parametrize("module", ["seg.train", "rl.train"])
def test_a_default_command_runs_through_the_files_of_the_page(module, flags, monkeypatch):
    section = TEXT.partition("## From a command to an equation\n")[2].partition("\n## ")[0]
    assert f"`{ONE_PASS.relative_to(ROOT)}`" in section
    given, path = re.search(
        rf"^- `python -m {module} (.+?)`: (.+?)\n(?=- |\n)", section, flags=re.M | re.S
    ).groups()
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", path)
    assert path.count("→") == len(named) - 1 > 0
    stack = stack_at_the_equation(module, shlex.split(f"{given} {flags[module]}"), monkeypatch)

    def is_at(frame, place):
        file, name = place
        return frame[0] == str(ROOT / file) and f"{frame[1]}.".startswith(f"{name}.")

    frames = iter(stack)
    for place in named:
        assert any(is_at(frame, place) for frame in frames), (
            f"{place} is not in its order in {stack}"
        )
    assert is_at(stack[-1], named[-1]), f"the equation is called from {stack[-1]}"

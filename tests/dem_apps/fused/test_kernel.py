"""The C++ kernel is optional: built once, cached, and replaced by PyTorch without a compiler."""

import logging
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from dem_apps import build_objective
from dem_apps.fused.build_kernel import load_kernel
from dem_apps.runtime.files import cache_dir

compilers = map(shutil.which, ("g++", "clang++", "c++"))
needs_compiler = pytest.mark.skipif(not any(compilers), reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    load_kernel.cache_clear()
    yield
    monkeypatch.undo()
    load_kernel.cache_clear()


def assert_objectives_do_without():
    # more than auto leaves to the plain equations
    logits = torch.randn(2, 7, 10_000, requires_grad=True)
    auto, eager = build_objective("adadem", 7), build_objective("adadem", 7, backend="eager")
    loss, expected = auto(logits), eager(logits)
    assert torch.equal(loss, expected)
    loss.backward()
    with pytest.raises(
        ValueError, match=r"backend: 'compiled' cannot serve .*needs a C\+\+ compiler"
    ):
        build_objective("adadem", 7, backend="compiled")(logits)


def test_without_a_compiler(monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.INFO, "dem_apps.fused.build_kernel"):
        assert load_kernel() is None
        assert load_kernel() is None
    assert [record.levelname for record in caplog.records] == ["INFO"], (
        "said once, and not a warning"
    )
    assert "no C++ compiler" in caplog.text
    assert_objectives_do_without()


@pytest.mark.parametrize(
    "compiler", ["/nowhere/g++", "false", "sh -c 'echo no such option >&2; exit 1'"]
)
def test_with_a_compiler_that_fails(compiler, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path))
    with caplog.at_level(logging.WARNING, "dem_apps.fused.build_kernel"):
        assert load_kernel() is None
    assert "PyTorch is used instead" in caplog.text
    assert list((tmp_path / "kernels").iterdir()) == [], "nothing half-built is left"
    assert_objectives_do_without()


@pytest.fixture
def quick_compiler(monkeypatch, tmp_path):
    """A compiler that returns the built library; the fixture is the file that counts its calls."""
    load_kernel()
    built = max(
        (cache_dir() / "kernels").glob("one_pass-*.so"), key=lambda path: path.stat().st_mtime_ns
    )
    load_kernel.cache_clear()
    calls, script = tmp_path / "calls", tmp_path / "quick-compiler"
    script.write_text(f'#!/bin/sh\necho built >> {calls}\nfor out; do :; done\ncp {built} "$out"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return calls


@needs_compiler
def test_it_is_built_once(quick_compiler, monkeypatch, tmp_path):
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        load_kernel.cache_clear()
        assert load_kernel() is not None
    assert quick_compiler.read_text() == "built\n"
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 1


@needs_compiler
@pytest.mark.usefixtures("quick_compiler")
def test_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("DEM_APPS_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(30, "Read-only file system")))
    assert load_kernel() is not None
    assert not (tmp_path / "home").exists()

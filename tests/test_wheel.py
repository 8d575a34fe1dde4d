"""The wheel, installed in an empty environment elsewhere: every kind of command works in a folder that is no clone.

torch and the other dependencies are taken from where the tests run; only the project comes from the wheel.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from support.clone import clone

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("pip")
    out = tmp_path_factory.mktemp("wheel")
    copy = out / "source"
    clone(copy, "docs/", "tests/")  # so that the build leaves nothing in this one
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    install = ["--python", str(interpreter), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    packages = next(folder.glob("lib/python*/site-packages"))
    # a path in a .pth is searched after the folder itself, and no .pth of that path is followed: not the clone
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return interpreter


def run(python, folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-m", *arguments], cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_it_holds_what_is_no_python(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for file in (
        *ROOT.glob("configs/**/*.yaml"),
        *ROOT.glob("dem_apps/report/templates/*"),
        *ROOT.glob("*/fused/*.cpp"),
    ):
        name = str(file.relative_to(ROOT))
        assert (f"dem_apps/{name}" if name.startswith("configs/") else name) in names
    assert "dem_apps/configs/seg/best.yaml" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]


def test_commands_work_elsewhere(python, tmp_path):
    code = "import dem_apps, seg, rl; print(dem_apps.__file__, seg.__file__, rl.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert where.count(str(python.parent.parent)) == 3
    tiny = ("--max-steps", "2", "--eval-every", "2", "--maps", "2")
    run(python, tmp_path, "seg.train", *tiny, "--run-dir", "runs/a")
    run(python, tmp_path, "seg.train", "--config", "best", *tiny, "--run-dir", "runs/b")
    assert json.loads((tmp_path / "runs/a/eval.json").read_text())["miou"] is not None
    run(python, tmp_path, "seg.evaluate", "--run", "runs/a")
    images = next((tmp_path / "runs/a/entropy_maps").glob("*/image.png")).parent
    run(python, tmp_path, "seg.export", "--run", "runs/a", "--images", str(images), "--out", "export")
    run(python, tmp_path, "seg.export_model", "--run", "runs/a", "--out", "model")
    run(
        python, tmp_path, "rl.train", "--env", "MiniGrid-DoorKey-5x5-v0", "--timesteps", "512", "--run-dir", "runs/rl",
    )  # fmt: skip
    page = run(python, tmp_path, "dem_apps.report", "runs/a", "runs/b", "--out", "report.html")
    assert "report.html" in page
    assert (tmp_path / "report.html").stat().st_size > 10_000
    for module in ("seg", "rl", "dem_apps"):
        assert f"python -m {module}." in run(python, tmp_path, module)

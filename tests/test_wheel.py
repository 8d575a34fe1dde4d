"""The wheel, installed in an empty environment elsewhere: every kind of command works in a folder that is no clone.

torch and the other dependencies are taken from where the tests run; only the project comes from the wheel.
"""

import json
import sysconfig
import venv
import zipfile

import pytest
from support import ROOT, clone, python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("pip")
    out = tmp_path_factory.mktemp("wheel")
    copy = out / "source"
    clone(copy, "docs/", "tests/")  # so that the build leaves nothing in this one
    python("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, copy)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    python("-m", "pip", "--python", interpreter, "install", "--no-deps", "--no-index", wheel)
    packages = next(folder.glob("lib/python*/site-packages"))
    # a path in a .pth is searched after the folder itself, and no .pth of that path is followed: not the clone
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return interpreter


def run(interpreter, folder, *arguments, flag="-m"):
    return python(
        flag, *arguments, folder=folder, by=interpreter, PYTHONPATH="", OMP_NUM_THREADS="1"
    )


def test_it_holds_what_is_no_python(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    globs = ("configs/**/*.yaml", "dem_apps/report/templates/*", "*/fused/*.cpp")
    for file in (file for glob in globs for file in ROOT.glob(glob)):
        name = str(file.relative_to(ROOT))
        assert (f"dem_apps/{name}" if name.startswith("configs/") else name) in names
    assert "dem_apps/configs/seg/best.yaml" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]


def test_commands_work_elsewhere(installed, tmp_path):
    code = "import dem_apps, seg, rl; print(dem_apps.__file__, seg.__file__, rl.__file__)"
    assert run(installed, tmp_path, code, flag="-c").count(str(installed.parent.parent)) == 3
    tiny = ("--max-steps", "2", "--eval-every", "2", "--maps", "2")
    run(installed, tmp_path, "seg.train", *tiny, "--run-dir", "runs/a")
    run(installed, tmp_path, "seg.train", "--config", "best", *tiny, "--run-dir", "runs/b")
    assert json.loads((tmp_path / "runs/a/eval.json").read_text())["miou"] is not None
    run(installed, tmp_path, "seg.evaluate", "--run", "runs/a")
    images = next((tmp_path / "runs/a/entropy_maps").glob("*/image.png")).parent
    run(
        installed,
        tmp_path,
        "seg.export",
        "--run",
        "runs/a",
        "--images",
        str(images),
        "--out",
        "export",
    )
    run(installed, tmp_path, "seg.export_model", "--run", "runs/a", "--out", "model")
    run(
        installed,
        tmp_path,
        "rl.train",
        "--env=MiniGrid-DoorKey-5x5-v0",
        "--timesteps=512",
        "--run-dir=runs/rl",
    )
    page = run(installed, tmp_path, "dem_apps.report", "runs/a", "runs/b", "--out", "report.html")
    assert "report.html" in page
    assert (tmp_path / "report.html").stat().st_size > 10_000

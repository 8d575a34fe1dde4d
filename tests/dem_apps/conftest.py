"""What the tests of the core share: the slow reference, how close is close, and a browser for reports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paper_reference import Paper
from torch import Tensor

from dem_apps.fused.build_kernel import load_kernel
from dem_apps.report.page import render
from dem_apps.runtime.run_reader import read_runs

#: Largest error allowed, relative to the largest expected number: about twice what is seen (ten times for float64).
#: Half precision rounds a gradient twice, the first time before the table's part cancels most of it.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}

needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="no C++ compiler here")


@pytest.fixture(scope="session")
def paper() -> type[Any]:
    """The paper's pseudo code, slow and plain."""
    return Paper


@pytest.fixture(params=["reference", "eager", pytest.param("compiled", marks=needs_kernel)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each form of the computation."""
    return request.param


@pytest.fixture(scope="session")
def assert_near() -> Callable[..., None]:
    """``assert_near(actual, expected, dtype)``: equal up to that dtype's rounding."""

    def check(actual: Tensor, expected: Tensor, dtype: torch.dtype, what: str = "", scale: float = 0.0) -> None:
        assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
        actual, expected = actual.detach().double(), expected.detach().double()
        largest = max(expected.abs().max().item() if expected.numel() else 0.0, scale)
        error = (actual - expected).abs().max().item() if expected.numel() else 0.0
        allowed = TOLERANCE[dtype] * largest
        assert error <= allowed, f"{what}: off by {error:.3g}, allowed {allowed:.3g} (values up to {largest:.3g})"

    return check


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install -e '.[dev]')")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        # the sandbox needs rights that containers do not give, and the pages are our own
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the report of some runs; at the end nothing may have been said in the console, nor asked of a network."""
    contexts, complaints = [], []

    def open_report(*runs: Path, width: int = 1280, scheme: str = "light") -> Any:
        file = tmp_path / "report.html"
        file.write_bytes(render(read_runs(runs)))
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else complaints.append(asked.url)
        )
        page.goto(file.as_uri())
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert complaints == []

"""The command that writes a page: where it goes, what it says, its mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import report_runs as make

from dem_apps.errors import InputError
from dem_apps.report.__main__ import main


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(make.rl_run(tmp_path / name, loss=name)) for name in ("entropy", "adadem")]
    out = tmp_path / "deep" / "report.html"
    main([*runs, "--out", str(out), "--baseline", runs[1]])
    assert "2 runs" in capsys.readouterr().out
    # columns are the settings: the second one is what the first is compared with
    assert "; difference +0.000 of one seed, and only more seeds tell how much of it is chance." in make.text_of(
        out.read_text()
    )
    assert "<title>entropy, adadem compared</title>" in out.read_text()
    assert re.search(r"entropy 1 run adadem 1 run .{0,99}\+0\.000 0\.900 baseline", make.text_of(out.read_text()))
    assert make.text_of(out.read_text()).count("no interval") == 1
    main([runs[0], "--out", str(out)])  # its own page is replaced
    assert out.read_text().count("<title>entropy</title>") == 1


def test_the_page_goes_to_the_run_or_the_folder_of_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arm, miou in (("control", 0.3), ("style", 0.35)):
        for seed in (0, 1):
            loss = "none" if arm == "control" else "adadem"
            make.seg_run(tmp_path / "grid" / arm / f"seed{seed}", miou=miou + seed / 100, loss=loss, seed=seed)
    (tmp_path / "grid" / "report").mkdir()
    main([str(tmp_path / "grid")])
    shown = make.text_of((tmp_path / "grid" / "report.html").read_text())
    assert (
        "style: mean IoU 35.50 % at the end of training, control 30.50 %; difference +5.00 [+5.00, +5.00] over 2 "
        "seeds: better; an alarm in 2" in shown
    )
    main([str(tmp_path / "grid" / "control" / "seed1")])
    shown = make.text_of((tmp_path / "grid" / "control" / "seed1" / "report.html").read_text())
    assert "mean IoU %: 31.00 at the end of training; an alarm in 1 of 1 runs, read below." in shown
    monkeypatch.chdir(tmp_path)
    main([str(tmp_path / "grid" / "control" / f"seed{seed}") for seed in (0, 1)])
    shown = make.text_of((tmp_path / "report.html").read_text())
    assert "mean IoU %: 30.50 ± 0.71 over 2 seeds; an alarm in 2 of 2 runs" in shown


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "grid" / "run")
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine")
    for arguments, sentence in (
        ([], "the following arguments are required: RUN"),
        ([str(tmp_path / "none")], "is no folder"),
        ([str(tmp_path / "grid"), str(run)], "it holds run folders, so give those"),
        ([str(run), str(run)], "given twice"),
        ([str(run), "--out", str(mine)], "is no report of this command"),
        ([str(run), "--out", str(tmp_path)], "is no file"),
        ([str(run), "--out", str(mine / "x.html")], "cannot be written"),
        ([str(run), "--out", str(tmp_path / "r.html"), "--baseline", str(tmp_path)], "none of the runs given"),
        ([str(run), "--out", str(tmp_path / "r.html"), "--tail", "pol"], "did you mean 'pole'"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            main(arguments)
    assert mine.read_text() == "<p>mine"

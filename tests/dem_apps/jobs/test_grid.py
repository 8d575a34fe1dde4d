"""One job as a process, several commands on one grid, and the executor of Ray. Jobs are shell scripts."""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from support import ROOT, cases, refuses
from support.shell_job import Shell

from dem_apps.jobs import executor as executors
from dem_apps.jobs.executor import (
    Executor,
    ExecutorConfig,
    Job,
    JobFailed,
    JobKilled,
    build_executor,
    run_job,
)
from dem_apps.jobs.grid import run_jobs
from dem_apps.runtime import progress
from dem_apps.runtime.arguments import flags

DONE = """echo '{"score": 0.5}' > "$RUN/eval.json" """


def job(folder, script, name="run"):
    return Shell(f"job {name}", script, (), folder / name, "score")


def saving(folder):
    """A script that runs until it is asked to stop, and saves."""
    return f"trap 'sleep 0.2; touch {folder}/saved; exit 143' TERM; touch {folder}/up; while :; do sleep 0.02; done"


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_leaves_its_result_and_its_output(tmp_path):
    (tmp_path / "run.log").write_text("before\n")
    done = job(tmp_path, f"echo $GREETING; echo there >&2; {DONE}")
    run_job(done, {"GREETING": "hello"})
    assert done.score() == 0.5
    before, command, *printed = done.log.read_text().splitlines()
    assert (before, printed) == ("before", ["hello", "there"])
    assert command.startswith("$ sh -c ")
    run_job(job(tmp_path, "exit 3"), {})  # it has a result


def test_the_command_of_a_job_continues_what_has_begun(tmp_path):
    training = Job(
        "a",
        "seg.train",
        flags({"loss": "none", "eval_every": 5, "tau": None}),
        tmp_path / "run",
        "miou",
    )
    command = [sys.executable, "-m", "seg.train", "--loss=none", "--eval-every=5", "--tau=null"]
    assert training.command() == [*command, "--run-dir", str(tmp_path / "run")]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").touch()
    assert training.command() == [*command, "--run-dir", str(tmp_path / "run"), "--resume"]


@cases(
    ("echo first; echo second; exit 3", JobFailed, "it ended with status 3: second"),
    ("exit 0", JobFailed, "ended without an eval.json"),
    ("exit 129", JobFailed, "status 129"),
    ("kill -9 $$", JobKilled, "status -9"),
    ("exit 130", JobKilled, "status 130"),
    ("exit 143", JobKilled, "status 143"),
)
def test_a_signal_is_told_from_a_failure(script, error, message, tmp_path):
    with pytest.raises(JobFailed, match=message) as caught:
        run_job(job(tmp_path, script), {})
    assert type(caught.value) is error
    assert f"(all of its output: {tmp_path / 'run.log'})" in str(caught.value)


def test_a_training_that_outlived_its_command_is_not_a_failure(tmp_path):
    (tmp_path / "run").mkdir()
    with (
        FileLock(tmp_path / "run" / "run.lock"),
        pytest.raises(executors.JobTaken, match="its training goes on"),
    ):
        run_job(job(tmp_path, DONE), {})
    run_job(job(tmp_path, DONE), {})
    assert job(tmp_path, DONE).finished


def test_a_damaged_result_is_one_sentence(tmp_path):
    (tmp_path / "run").mkdir()
    for text, message in (
        ('{"sco', "is not valid JSON"),
        ('{"miou": 1}', "eval.json: the key 'score' is missing$"),
    ):
        (tmp_path / "run/eval.json").write_text(text)
        refuses(message, job(tmp_path, DONE).score)


def test_an_interruption_waits_until_the_training_has_saved_and_starts_no_more(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(executors, "_LOOK_SECONDS", 0.01)
    jobs = iter([job(tmp_path, saving(tmp_path)), job(tmp_path, DONE, "next")])
    executor, killed = Executor({}), list[Job]()

    def work(one):
        try:
            executor.run(one)
        except JobKilled:
            killed.append(one)

    def look(running):
        wait_for((tmp_path / "up").exists)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run_all(1, jobs, work, lambda *_: None, look)
    assert (tmp_path / "saved").exists()
    assert [one.name for one in killed] == ["job run"]
    assert [one.name for one in jobs] == ["job next"]
    with pytest.raises(JobKilled):
        executor.run(job(tmp_path, DONE, "late"))
    assert not (tmp_path / "late").exists()


def test_two_commands_divide_a_grid(tmp_path, capfd):
    jobs = [job(tmp_path, f"sleep 0.1; {DONE}", str(number)) for number in range(8)]

    def command():
        os._exit(len(run_jobs(jobs, ExecutorConfig(workers=2), {})))

    commands = [multiprocessing.get_context("fork").Process(target=command) for _ in range(2)]
    for process in commands:
        process.start()
    for process in commands:
        process.join(60)
    assert [process.exitcode for process in commands] == [0, 0]
    assert [len((one.run / "starts").read_text().splitlines()) for one in jobs] == [1] * 8
    assert "another command runs it" in capfd.readouterr().out


def test_a_failure_stops_nothing_and_is_tried_again_by_the_next_start(tmp_path, capsys):
    config = ExecutorConfig(workers=2)
    scripts = ["echo unlucky; exit 1", "kill -9 $$", DONE]
    failures = run_jobs([job(tmp_path, text, str(n)) for n, text in enumerate(scripts)], config, {})
    assert set(failures) == {"job 0", "job 1"}
    printed = capsys.readouterr().out
    assert "job 0  failed: it ended with status 1: unlucky (all of its output:" in printed
    assert "job 2  score 0.500  [1 of 3 runs done]" in printed
    assert run_jobs([job(tmp_path, DONE, str(n)) for n in range(3)], config, {}) == {}
    assert capsys.readouterr().out.count("\n") == 2


def test_meanwhile_the_last_lines_of_trainings_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(executors, "_LOOK_SECONDS", 0.05)
    run_jobs([job(tmp_path, f"echo 7/9 left; sleep 0.5; {DONE}", "0")], ExecutorConfig(), {})
    assert "grid: job 0: 7/9 left\n" in capsys.readouterr().out


def test_threads_of_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    local, on_ray = (
        ExecutorConfig(workers=4),
        ExecutorConfig(executor="ray", workers=4, cores_per_job=3),
    )
    assert executors.threads_of_jobs(local) == {"OMP_NUM_THREADS": "2"}
    assert executors.threads_of_jobs(on_ray) == {"OMP_NUM_THREADS": "3"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert executors.threads_of_jobs(local) == {"OMP_NUM_THREADS": "5"}


@pytest.mark.slow
def test_ray_runs_the_same_jobs(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}/tests:{ROOT}")  # of the scripts' class
    monkeypatch.chdir(tmp_path)
    config = ExecutorConfig(executor="ray", ray_address="local", workers=2)
    executor = build_executor(config, {"GREETING": "hello", "OMP_NUM_THREADS": "3"})
    try:
        done = job(Path("grid"), f"echo $GREETING $OMP_NUM_THREADS; {DONE}", "done")
        executor.run(done)
        assert (done.score(), done.last_line()) == (0.5, "hello 3")
        with pytest.raises(
            JobFailed,
            match=r"^it ended with status 1: unlucky \(all of its output: .*grid/failed.log\)$",
        ):
            executor.run(job(Path("grid"), "echo unlucky; exit 1", "failed"))
        with ThreadPoolExecutor() as threads:
            end = threads.submit(executor.run, job(Path("grid"), saving(tmp_path), "stopped"))
            wait_for((tmp_path / "up").exists)
            executor._stop.set()
            assert isinstance(end.exception(30), JobKilled)
        wait_for((tmp_path / "saved").exists)
    finally:
        ray.shutdown()


@cases(
    (False, r"--executor ray: ray is not installed; run pip install -e '\.\[cluster\]'"),
    (True, "--ray-address: Ray has no cluster at 'nowhere': "),
)
def test_a_cluster_that_is_not_there_is_one_sentence(installed, message, monkeypatch):
    if installed:
        pytest.importorskip("ray")
    else:
        monkeypatch.setitem(sys.modules, "ray", None)
    refuses(message, build_executor, ExecutorConfig(executor="ray", ray_address="nowhere"), {})

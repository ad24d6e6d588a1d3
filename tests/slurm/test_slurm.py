"""Under a real Slurm: the right number of ranks, or one clear line."""

import os
import pty
import shlex
import subprocess
import time

import pytest

from .conftest import PATIENCE, Ran

JOB = """\
#!/bin/bash
{lines}
touch {folder}/done
"""
NAMED = "{command} > {folder}/{name}.out 2> {folder}/{name}.err; echo $? > {folder}/{name}.code"


def submit(slurm, folder, commands, *options):
    """Outputs of commands in one batch script."""
    lines = [NAMED.format(command=shlex.join(words), folder=folder, name=name) for name, words in commands.items()]
    (folder / "job.sh").write_text(JOB.format(lines="\n".join(lines), folder=folder))
    subprocess.run(["sbatch", *options, "-o", folder / "job.out", folder / "job.sh"], env=slurm, cwd=folder, check=True)
    end = time.monotonic() + PATIENCE
    while not (folder / "done").exists():
        assert time.monotonic() < end, (folder / "job.out").read_text() if (folder / "job.out").exists() else "waits"
        time.sleep(0.1)
    return {
        name: Ran(int((folder / f"{name}.code").read_text()), *read(folder, name), folder / name) for name in commands
    }


def read(folder, name):
    return (folder / f"{name}.out").read_text(), (folder / f"{name}.err").read_text()


@pytest.fixture(scope="module")
def batch(slurm, fedrs, tmp_path_factory):
    """What a job of two tasks with one core each does: without srun, with it, and where the options do not agree."""
    folder = tmp_path_factory.mktemp("batch")

    def fit(name, *options):
        return [*fedrs, "--run.root", str(folder / name), *options]

    commands = {
        "without": fit("without", "--fabric.devices", "2"),
        "with": ["srun", "--cpus-per-task=1", "--cpu-bind=cores", *fit("with")],
        "refused": ["srun", *fit("refused", "--fabric.devices", "1")],
    }
    return submit(slurm, folder, commands, "--ntasks=2", "--cpus-per-task=1")


def test_a_batch_script_starts_the_ranks_itself_and_srun_starts_them_for_it(batch):
    results = []
    for name in ("without", "with"):
        ran = batch[name]
        assert ran.code == 0, ran.err
        assert ran.lines == ["tiny/FedAvg starts: 3 clients, 1 rounds, 2 rank(s)"]
        assert ran.out.count("run directory: ") == 1
        facts = ran.store.environment()
        assert (facts["world_size"], facts["threads"]) == (2, 1)
        results.append(ran.store.result()["digest"])
    assert len(set(results)) == 1
    assert batch["with"].store.environment()["cores"] == 1  # each task has its own
    assert batch["without"].store.environment()["cores"] >= 2


def test_another_number_of_tasks_than_asked_for_is_one_line(batch):
    ran = batch["refused"]
    assert ran.code == 2
    assert ran.lines == [
        "fedrs fit: srun started 2 rank(s) on a machine, but fabric.devices=1; leave fabric.devices to auto, or start "
        "1 there"
    ]
    assert not ran.out
    assert not ran.root.exists()


def test_a_job_of_one_task_has_one_rank(slurm, fedrs, tmp_path):
    ran = submit(slurm, tmp_path, {"run": [*fedrs, "--run.root", str(tmp_path / "run")]}, "--ntasks=1")["run"]
    assert ran.code == 0, ran.err
    assert ran.lines == ["tiny/FedAvg starts: 3 clients, 1 rounds, 1 rank(s)"]


def test_an_interactive_step_starts_the_ranks_itself(slurm, fedrs, tmp_path):
    inside = shlex.join([*fedrs, "--run.root", str(tmp_path / "run"), "--fabric.devices", "2"])
    shell = f"[ $SLURM_PROCID = 0 ] || exit 0; {inside} > {tmp_path}/run.out 2> {tmp_path}/run.err"
    ours, theirs = pty.openpty()  # srun gives its own terminal to the first task
    process = subprocess.Popen(
        ["srun", "-n2", "--pty", "bash", "-c", shell],
        env=slurm,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=tmp_path,
    )
    os.close(theirs)
    code = process.wait(PATIENCE)
    os.close(ours)
    ran = Ran(code, *read(tmp_path, "run"), tmp_path / "run")
    assert ran.code == 0, ran.err
    assert ran.lines == ["tiny/FedAvg starts: 3 clients, 1 rounds, 2 rank(s)"]
    assert ran.store.environment()["world_size"] == 2


def test_a_task_that_never_comes_is_one_line(slurm, fedrs, tmp_path):
    inside = shlex.join([*fedrs, "--run.root", str(tmp_path / "run"), "--fabric.join_timeout", "3"])
    done = subprocess.run(
        ["srun", "-n2", "bash", "-c", f"[ $SLURM_PROCID = 1 ] || exec {inside}"],
        env=slurm,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    ran = Ran(done.returncode, done.stdout, done.stderr, tmp_path / "run")
    assert ran.code == 2
    missing = "1 of 2 ranks did not join within 3 s: rank 1"
    assert ran.lines == [f"fedrs fit: {missing}; start all of them, or raise fabric.join_timeout"]

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm" / "fit.sbatch"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"SLURM_CPUS_PER_TASK": "8"},
            ["--cpus-per-task=8", "fedrs", "fit", "--resume", "auto", "--config", "a b.yaml"],
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "3"},
            ["--cpus-per-task=1", "fedrs", "fit", "--resume", "auto", "--config", "a b.yaml", "--seed", "3"],
        ),
    ],
)
def test_the_script_hands_its_options_and_the_array_element_to_fit(tmp_path, variables, expected):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text('export PATH="$PWD/bin:$PATH"\n')
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\nexit 7\n')
    srun.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")} | variables
    done = subprocess.run(
        ["bash", SCRIPT, "--config", "a b.yaml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["--kill-on-bad-exit=1", *expected]
    assert done.returncode == 7

"""CPU seconds before a command does its work, as ratios to importing torch, and torch with lightning.

A mistake is found from signatures, before anything heavy is loaded: in a group, in a class of this package and in one
given by import path. `--print_config` is read in the same way, and so is a run that is complete already and
shows its table.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample

REPEATS = 5
ROOT = Path(__file__).resolve().parents[1]
FIT = (sys.executable, "-m", "fedrs_lightning.cli.main", "fit", "--config", "experiments/quickstart.yaml")
OWN = """from fedrs_lightning.methods import FedAvg


class Mine(FedAvg):
    def __init__(self, pull: float = 1.0):
        super().__init__()
"""


def seconds(command: list[str], code: int, folder: str) -> float:
    """Median CPU seconds of a command that must end with `code`; the first call is not counted."""
    path = os.pathsep.join([folder, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    found = []
    for _ in range(REPEATS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == code, done.stderr.decode()
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found[1:])


def main() -> None:
    """Print the ratios; exit code 1 where a goal is missed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mine.py").write_text(OWN)
        write_sample(Path(folder, "eurosat"), EuroSATSample(tiles=4))
        tiny = [
            "--data.root",
            f"{folder}/eurosat",
            "--data.partition=IID",
            "--data.min_samples=1",
            "--data.cache_dir",
            f"{folder}/cache",
        ]
        tiny += ["--run.root", f"{folder}/runs", "--run.plot=false", "--schedule.num_rounds=1", "--fabric.devices=1"]
        torch = seconds([sys.executable, "-c", "import torch"], 0, folder)
        both = seconds([sys.executable, "-c", "import torch, lightning"], 0, folder)
        print(f"importing torch {torch:.2f} s, torch and lightning {both:.2f} s of CPU (median of {REPEATS})")
        met = True
        for name, options, code, reference, goal in (
            ("mistyped key of a group / torch", ["--schedule.num_round", "3"], 2, torch, 1.3),
            ("mistyped option / torch", ["--schedul.num_rounds", "3"], 2, torch, 1.3),
            ("mistyped key in a class / torch and lightning", ["--method.powr", "3"], 2, both, 1.2),
            ("the same in a class by import path", ["--method=mine.Mine", "--method.pul=3"], 2, both, 1.2),
            ("--print_config / torch and lightning", ["--print_config"], 0, both, 1.2),
            ("a complete run shows its table / torch", tiny, 0, torch, 1.3),
        ):
            ratio = seconds([*FIT, *options], code, folder) / reference
            met = met and ratio <= goal
            print(f"{'ok  ' if ratio <= goal else 'MISS'} {name}: {ratio:.2f} (goal at most {goal:g})", flush=True)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()

"""What a GPU run of this package promises, shown on a GPU in at most eight minutes: `make gpu-check`.

    python benchmarks/gpu_check.py [--only PART ...] [--out FILE] [--device cpu --quick]

    digests         every method twice on one rank, deterministic: the same bits
    two-ranks       every method on two ranks that share the device: the bits of one rank
    agreement       every method beside the CPU, within stated tolerances
    waits           how often the host waits for the device in a step and in a visit, by source line
    throughput      ResNet-50 in float32, TF32 and bfloat16: local steps, evaluation and loader beside a bare loop
    feddap          the same for FedDAP on crops of 512 x 512 pixels
    rounds          share of a round outside the steps, and peak memory of device and host
    eurosat         three rounds of experiments/fedmad_eurosat.yaml on random images, extrapolated to its schedule

Every part is a process with a time limit of its own. It writes what it finds as it goes, so that a part that is out of
time, or fails, still shows what it had. All is gathered in one JSON file after each part, and in a table at the end.
`--device cpu --quick` runs small forms of all parts without a GPU, which tests the script and measures nothing.

Exit code: 0 all goals met, 1 a goal missed or a part not finished, 2 no GPU or a mistake in the command.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import naming_the_place, write_json

HERE = Path(__file__).resolve()
TOTAL = 480.0
PARTS = {  # seconds, and what runs, in `gpu_parts`
    "digests": (90, "digests.repeated"),
    "two-ranks": (60, "digests.two_ranks"),
    "agreement": (60, "agreement.agreement"),
    "waits": (45, "waits.waits"),
    "throughput": (75, "throughput.throughput"),
    "feddap": (45, "throughput.feddap"),
    "rounds": (35, "rounds.rounds"),
    "eurosat": (60, "eurosat.eurosat"),
}
WORDS = 400  # characters of a failed part's last line


def work(name: str, device: str, quick: bool, folder: Path) -> int:
    """A part, in its own process. Ends with 3 and a line where the code does not offer what is measured."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from fedrs_lightning.cli.process import prepare_process, quieten

    prepare_process()
    from gpu_parts.sheet import NotYet, Setting, Sheet

    quieten()
    module, _, function = PARTS[name][1].partition(".")
    part = getattr(import_module(f"gpu_parts.{module}"), function)
    sheet = Sheet(folder / f"{name}.json")
    try:
        part(Setting(device, quick, folder), sheet)
    except NotYet as reason:
        print(reason, file=sys.stderr)
        return 3
    return 0


def start(name: str, options: argparse.Namespace, folder: Path, limit: float) -> dict[str, Any]:
    """Run a part within its limit; its status, its seconds, and what it wrote."""
    command = [sys.executable, str(HERE), "part", name, options.device, str(int(options.quick)), str(folder)]
    env = {key: value for key, value in os.environ.items() if key not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    begun = time.perf_counter()
    said = ""
    with (folder / f"{name}.txt").open("w+") as words:
        # A group of its own, so that its ranks end with it.
        process = subprocess.Popen(command, stdout=words, stderr=words, env=env, start_new_session=True)
        try:
            code: int | None = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        words.seek(0)
        lines = [line for line in words.read().splitlines() if line.strip()]
        said = lines[-1][:WORDS] if lines else ""
    status = {0: "done", 3: "not offered", None: "out of time"}.get(code, "failed")
    found: dict[str, Any] = {"rows": [], "details": {}}
    if (folder / f"{name}.json").exists():
        found = json.loads((folder / f"{name}.json").read_text())
    reason = f"limit {limit:.3g} s" if code is None else said if code else ""
    return {"status": status, "reason": reason, "seconds": round(time.perf_counter() - begun, 1)} | found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Every row of every part, with its goal."""
    lines = [("", "part", "what", "value", "goal")]
    for part, result in found.items():
        state = f"{result['status']} after {result['seconds']:.0f} s" if result["seconds"] else result["status"]
        reason = f": {result['reason']}" if result["reason"] else ""
        lines.append(("ok" if result["status"] == "done" else "MISS", part, state + reason, "", ""))
        for row in result["rows"]:
            goal = "".join(f"{word.replace('_', ' ')} {row[word]:g}" for word in ("at_most", "at_least") if word in row)
            mark = {True: "ok", False: "MISS", None: ""}[row.get("met")]
            lines.append((mark, "", row["name"], f"{row['value']:.4g} {row['unit']}".strip(), goal))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1, 3)]
    widest = min(72, max(len(line[2]) for line in lines))
    return "\n".join(
        f"{mark:{widths[0]}}  {part:{widths[1]}}  {what:{widest}}  {value:>{widths[2]}}  {goal}".rstrip()
        for mark, part, what, value, goal in lines
    )


def met(found: dict[str, dict[str, Any]]) -> bool:
    """Whether every part was done and every goal met."""
    rows = [row for result in found.values() for row in result["rows"]]
    return all(result["status"] == "done" for result in found.values()) and all(row.get("met", True) for row in rows)


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Versions and devices."""
    import torch

    from fedrs_lightning.results.environment import environment

    known = environment()
    if options.device == "cuda":
        name = torch.cuda.get_device_properties(0)
        known |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "device": str(name)}
    return known


def main(argv: Sequence[str]) -> int:
    """Run the parts one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="these parts")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small forms of the parts")
    parser.add_argument("--limit", type=float, help="seconds of every part, instead of its own limit")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check.json"), help="default build/gpu-check.json")
    options = parser.parse_args(argv)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        remedy = "--device cpu --quick runs small forms of all parts without one"
        print(f"gpu_check: torch {torch.__version__} sees no CUDA device; {remedy}", file=sys.stderr)
        return 2
    if options.device == "cpu" and not options.quick:
        print("gpu_check: --device cpu needs --quick; on a CPU the full parts would take hours", file=sys.stderr)
        return 2
    begun = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    try:
        with naming_the_place(options.out), tempfile.TemporaryDirectory(prefix="fedrs-gpu-check-") as folder:
            whole = {"device": options.device, "quick": options.quick, "machine": machine(options), "parts": found}
            for name in PARTS:
                if name not in options.only:
                    continue
                left = TOTAL - (time.perf_counter() - begun)
                print(f"gpu_check: {name}", flush=True)
                if left > 1:
                    found[name] = start(name, options, Path(folder), min(options.limit or PARTS[name][0], left))
                else:
                    found[name] = {"status": "not begun", "reason": "no time left", "seconds": 0.0, "rows": []}
                write_json(options.out, whole)
    except RunError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    print(table(found))
    print(f"{time.perf_counter() - begun:.0f} s in all; details in {options.out}")
    return 0 if met(found) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["part"]:
        part, device, quick, folder = sys.argv[2:6]
        sys.exit(work(part, device, quick == "1", Path(folder)))
    sys.exit(main(sys.argv[1:]))

"""Whether two states of the code give the same bits: digests of many small runs, at both, on one machine.

    python benchmarks/compare_digests.py OLD NEW
    python benchmarks/compare_digests.py OLD --save old.json
    python benchmarks/compare_digests.py old.json .

OLD and NEW are each a commit, the folder of a checkout (with its uncommitted changes), or a file that --save wrote. A
commit is checked out into a temporary git worktree. Every case of `benchmarks/digest_cases/` runs for two rounds, all
of one side in one process, on synthetic data that the first side paints and on small images and rasters that this
script writes. Each side reads the cases of its own tree; --old-cases and --new-cases name another folder for one whose
configuration keys differ.

Compared are, for each case, the digest of server state and client memories, the digest of the model, and the scores of
the last round (all that both sides have, bit for bit). Where the first differs, a digest of the same tensors without
their names tells whether entries were only renamed, which is a difference all the same. Digests depend on the CPU and
on library versions, so that a file of digests is refused on another machine.

Exit code: 0 all the same, 1 a difference or a failed case, 2 a mistake in the command.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
REPOSITORY = HERE.parent.parent
CASES = Path("benchmarks/digest_cases")
LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "pillow", "rasterio", "torchmetrics")
AERIAL = ("--side", "128", "--gsd-factor", "4", "--spectral-shift", "0.4", "--spatial-shift", "0.5")
SYNTHETIC = {  # folder below the data folder: arguments of `fedrs data synth`
    "eurosat": ("eurosat", "--domains", "3", "--spectral-shift", "0.5", "--spatial-shift", "0.5"),
    "eurosat_ms": ("eurosat", "--layout", "EuroSAT_MS"),
    "bigearthnet": ("bigearthnet", "--spectral-shift", "0.5"),
    "potsdam": ("potsdam", "--domain", "0", *AERIAL),
    "vaihingen": ("vaihingen", "--domain", "1", *AERIAL),
    "loveda": ("loveda", *AERIAL[:4]),
    "potsdam_converted": ("potsdam", "--layout", "converted", *AERIAL),
    "loveda_converted": ("loveda", "--layout", "converted", *AERIAL[:4]),
}
Digests = dict[str, dict[str, Any]]  # case to what its run left


class Wrong(Exception):
    """A mistake in the command, said in one line."""


def main() -> int:
    """Run what is to be run, compare, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="commit, folder of a checkout, or file of digests")
    parser.add_argument("new", nargs="?", help="the same; without it OLD is run alone, for --save")
    parser.add_argument("--old-cases", type=Path, metavar="DIR", help="cases of OLD (default: those of its tree)")
    parser.add_argument("--new-cases", type=Path, metavar="DIR", help="cases of NEW (default: those of its tree)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the digests of the last side that is run")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keep data, packs, runs and logs here; data that are there are used"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose name holds one of the words")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that share the cases of a side")
    if sys.argv[1:2] == ["worker"]:
        tree, folder, runs = map(Path, sys.argv[2:5])
        return work(tree, folder, runs, sys.argv[5:])
    options = parser.parse_args()
    try:
        with contextlib.ExitStack() as stack:
            if options.work is None:
                options.work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="digests-")))
            options.work = options.work.resolve()
            old = side(options, options.old, options.old_cases, "old", stack)
            if options.new is None:
                return int(any("error" in found for found in old["cases"].values()))
            new = side(options, options.new, options.new_cases, "new", stack)
            return compare(old, new, options.only)
    except Wrong as mistake:
        print(f"compare_digests: {mistake}", file=sys.stderr)
        return 2


def side(
    options: argparse.Namespace, which: str, cases: Path | None, name: str, stack: contextlib.ExitStack
) -> dict[str, Any]:
    """Digests of OLD or NEW, and where they come from: read from a file, or run."""
    if which.endswith(".json"):
        try:
            known = json.loads(Path(which).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Wrong(f"{which}: no file of digests: {error}") from None
        differing = sorted(key for key in machine() if known["machine"].get(key) != machine()[key])
        if differing:
            raise Wrong(f"{which}: of another {' and '.join(differing)}; digests compare on one machine alone")
        return known
    tree = Path(which).resolve() if Path(which).is_dir() else stack.enter_context(checkout(which))
    cases = (cases or tree / CASES).resolve()
    files = sorted(
        path for path in cases.glob("*.yaml") if not options.only or any(w in path.stem for w in options.only)
    )
    if not files:
        raise Wrong(f"{cases}: no cases; name a folder with --{name}-cases")
    data = make_data(options.work / "data", tree)
    start = time.perf_counter()
    found = run_cases(tree, files, options.work, name, options.jobs)
    print(f"{name}: {which}, {len(found)} cases in {time.perf_counter() - start:.0f} s", flush=True)
    result = {"of": which, "commit": revision(tree), "machine": machine(), "data": data, "cases": found}
    if options.save is not None:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A commit in a temporary worktree."""
    with tempfile.TemporaryDirectory(prefix="digests-") as folder:
        tree = Path(folder) / "tree"
        added = git("worktree", "add", "--detach", str(tree), commit)
        if added.returncode:
            raise Wrong(f"'{commit}' is no commit, folder or .json file: {added.stderr.strip().splitlines()[-1]}")
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def revision(tree: Path) -> str:
    """Commit of a checkout, marked where it holds changes."""
    return git("describe", "--always", "--dirty", "--abbrev=12", cwd=tree).stdout.strip()


def machine() -> dict[str, str]:
    """What decides bits besides the code."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = " ".join(
            sorted({line.split(":")[1].strip() for line in lines if line.startswith(("model name", "flags"))})
        )
    forced = {name: os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_CBWR")}
    return {"CPU": hashlib.sha256(cpu.encode()).hexdigest(), **{name: version(name) for name in LIBRARIES}, **forced}


def python(tree: Path, work: Path, *arguments: str) -> subprocess.Popen[str]:
    """A process of this script on the code of a tree, in the data folder; prints a JSON line for each thing done."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "FEDRS_CACHE": str(work / "packs"),
    }
    command = [sys.executable, str(HERE), "worker", str(tree), str(work), *arguments]
    return subprocess.Popen(command, cwd=work.parent / "data", env=environment, stdout=subprocess.PIPE, text=True)


def run_cases(tree: Path, files: list[Path], work: Path, name: str, jobs: int) -> Digests:
    """Run all cases of a side in `jobs` processes; says how far it is."""
    work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    shares = [files[number::jobs] for number in range(min(jobs, len(files)))]
    processes = [python(tree, work, str(work / "runs"), *map(str, share)) for share in shares]
    found: Digests = {}
    for process, share in zip(processes, shares, strict=True):
        for line in process.stdout or ():
            case, result = json.loads(line)
            found[case] = result
            print(f"  {name} {case}: {result.get('error', result.get('digest', ''))[:100]}", flush=True)
        if process.wait():
            left = [path.stem for path in share if path.stem not in found]
            found |= {case: {"error": f"the process ended with exit code {process.returncode}"} for case in left}
    if any("error" in result for result in found.values()):
        print(f"  logs of what failed: {work}", flush=True)
    else:
        shutil.rmtree(work)
    return {path.stem: found[path.stem] for path in files}


def work(tree: Path, folder: Path, runs: Path, cases: list[str]) -> int:
    """What `python` starts: paint the data (no runs named) or run the cases."""
    import fedrs_lightning
    from fedrs_lightning.cli.main import main as fedrs

    if not Path(fedrs_lightning.__file__).is_relative_to(tree):
        raise SystemExit(f"{fedrs_lightning.__file__} was loaded instead of the package in {tree}")
    folder.mkdir(parents=True, exist_ok=True)
    for case in map(Path, cases):
        synth, failure = case.suffix != ".yaml", ""
        log = folder / f"{case.stem}.log"
        with log.open("w", encoding="utf-8") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                if synth:
                    code = fedrs(["data", "synth", *SYNTHETIC[case.name], "--out", case.name])
                else:
                    code = fedrs(["fit", "--config", str(case), "--run.root", str(runs), "--run.name", case.stem])
            except (Exception, SystemExit) as error:
                code, failure = 1, f"{type(error).__name__}: {error}"
        if code:
            said = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
            print(json.dumps([case.stem, {"error": failure or f"exit code {code}: {' '.join(said)}"}]), flush=True)
        elif not synth:
            print(json.dumps([case.stem, left_by(runs / case.stem)]), flush=True)
    return 0


def left_by(experiment: Path) -> dict[str, Any]:
    """Digests and scores of the one run in an experiment's folder."""
    from safetensors.numpy import load_file

    (run,) = experiment.iterdir()
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    tensors = []
    for path in [max((run / "checkpoints").glob("*.safetensors")), *(run / "clients").glob("*.safetensors")]:
        for value in load_file(path).values():
            tensors.append(hashlib.sha256(f"{value.dtype} {value.shape}".encode() + value.tobytes()).hexdigest())
    scores = dict(result["final"])
    for row in result["per_client"]:
        scores |= {
            f"client {row['client']}: {key}": value for key, value in row.items() if isinstance(value, float | int)
        }
    return {
        "digest": result["digest"],
        "model": result["digest_model"],
        "values": hashlib.sha256("".join(sorted(tensors)).encode()).hexdigest(),
        "scores": scores,
    }


def compare(old: dict[str, Any], new: dict[str, Any], only: list[str]) -> int:
    """Print a row a case and what differs; 1 where something does."""
    if old["data"] != new["data"]:
        raise Wrong("the two sides were run on different data; keep the folder of --work, or run both sides anew")
    names = sorted(set(old["cases"]) | set(new["cases"]))
    names = [name for name in names if not only or any(word in name for word in only)]
    width = max(map(len, names))
    print(f"\n{'case':{width}}  {old['commit'][:20]:20}  {new['commit'][:20]:20}  all    model  scores")
    failed = []
    for name in names:
        one, two = (each["cases"].get(name, {"error": "no such case"}) for each in (old, new))
        verdicts, remarks = ["-"] * 3, [each["error"] for each in (one, two) if "error" in each]
        if not remarks:
            common = sorted(set(one["scores"]) & set(two["scores"]))
            unlike = [key for key in common if one["scores"][key] != two["scores"][key]]
            same = (one["digest"] == two["digest"], one["model"] == two["model"], bool(common) and not unlike)
            verdicts = ["same" if each else "DIFF" for each in same]
            if not same[0]:
                equal = one["values"] == two["values"]
                remarks.append("the same tensors under other names" if equal else "other tensors")
            remarks += [f"{key}: {one['scores'][key]} and {two['scores'][key]}" for key in unlike[:2]]
            missing = sorted(set(one["scores"]) ^ set(two["scores"]))
            remarks += [f"note: one side alone has the scores {', '.join(missing[:4])}"] if missing else []
        if verdicts != ["same"] * 3:
            failed.append(name)
        digests = "  ".join(f"{each.get('digest', 'failed')[:20]:20}" for each in (one, two))
        print(f"{name:{width}}  {digests}  {'   '.join(f'{each:4}' for each in verdicts)}")
        for remark in remarks:
            print(f"{'':{width}}  {remark}")
    print(f"\n{len(names) - len(failed)} of {len(names)} cases have the same bits at {old['of']} and {new['of']}")
    return int(bool(failed))


def make_data(data: Path, tree: Path) -> str:
    """Make what the cases read, unless it is there; a hash of all files."""
    if not data.is_dir():
        data.mkdir(parents=True)
        log = data.parent / "paint"
        painter = python(tree, log, str(data.parent), *SYNTHETIC)
        errors = painter.communicate()[0]
        if painter.returncode or errors:
            raise Wrong(f"the data cannot be painted: {errors}")
        write_lists(data)
        write_images(data / "images")
        write_rasters(data / "rasters")
    total = hashlib.sha256()
    for path in sorted(path for path in data.rglob("*") if path.is_file() and path.name != "SYNTHETIC.json"):
        total.update(f"{path.relative_to(data)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def write_lists(data: Path) -> None:
    """Split lists for both kinds of EuroSAT, in the form of the published ones."""
    import random

    for folder, ending in (("eurosat", "jpg"), ("eurosat_ms", "tif")):
        names = sorted(path.name for path in (data / folder).rglob(f"*.{ending}"))
        random.Random(7).shuffle(names)
        for part, chosen in (("train", names[:120]), ("val", names[120:150]), ("test", names[150:])):
            target = data / "lists" / f"{folder}-{part}.txt"
            target.parent.mkdir(exist_ok=True)
            target.write_text("\n".join(chosen) + "\n", encoding="utf-8")


CLASSES = ("field", "forest", "water")


def write_images(root: Path) -> None:
    """Labelled images: PNG and JPEG, one folder a class, and 16-bit GeoTIFFs of four bands, listed in tables."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    draw = np.random.default_rng(1)
    for number, name in enumerate(CLASSES):
        for index in range(20):
            pixels = np.clip(draw.normal(60 + 50 * number, 25, (24, 24, 3)), 0, 255).astype(np.uint8)
            file = root / "folders" / name / f"part{index % 2}" / f"{name}_{index}.{'png' if index % 3 else 'jpg'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    rows = []
    for index in range(72):
        label, client = index % 3, ("north", "south", "west")[index // 3 % 3]
        mean = 800 + 700 * label + 300 * (index // 3 % 3)
        path = f"tiff/{index:03}.tif"
        write_tiff(root / path, np.clip(draw.normal(mean, 200, (4, 20, 20)), 0, 10000).astype(np.uint16))
        labels = [CLASSES[label], *([CLASSES[(label + 1) % 3]] if draw.random() < 0.4 else [])]
        split = ("train", "train", "train", "test", "train", "validation")[index // 9 % 6]
        rows.append((path, CLASSES[label], labels, client, split))
    one = [(path, label, client, split) for path, label, _, client, split in rows]
    several = [(path, ";".join(labels), client, split) for path, _, labels, client, split in rows]
    zones = [(path, label, client) for path, label, _, client, _ in rows]
    for name, head, lines in (
        ("one", ("path", "label", "client", "split"), one),
        ("several", ("path", "labels", "client", "split"), several),
        ("zones", ("path", "label", "zone"), zones),
    ):
        with (root / f"{name}.csv").open("w", newline="", encoding="utf-8") as listing:
            csv.writer(listing).writerows([head, *lines])
    table = pa.table({"path": [row[0] for row in rows], "labels": [row[2] for row in rows]})
    pq.write_table(table, root / "several.parquet")


def write_rasters(root: Path) -> None:
    """Image and label rasters: 16-bit GeoTIFFs of four bands in two domains, and PNGs with colours as labels."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(2)
    for shift, domain in enumerate(("north", "south")):
        for part, count in (("train", 3), ("test", 1)):
            for index in range(count):
                labels = draw.integers(0, 4, (6, 6)).repeat(16, 0).repeat(16, 1)  # 96 x 96, 0 means no label
                bands = 500 + 400 * labels + 250 * shift + draw.normal(0, 150, (4, 96, 96))
                place = root / domain / part
                write_tiff(place / "images" / f"tile{index}.tif", np.clip(bands, 0, 10000).astype(np.uint16))
                write_tiff(place / "labels" / f"tile{index}.tif", labels[None].astype(np.uint8))
    colours = np.array([[0, 0, 0], [255, 255, 0], [0, 128, 0]], np.uint8)
    for index in range(3):
        labels = draw.integers(0, 3, (4, 6)).repeat(20, 0).repeat(20, 1)  # 80 x 120
        pixels = np.clip(colours[labels] * 0.5 + draw.normal(60, 30, (80, 120, 3)), 0, 255).astype(np.uint8)
        for kind, values in (("image", pixels), ("label", colours[labels])):
            path = root / "png" / kind / f"scene{index}_{kind}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(path)


def write_tiff(path: Path, pixels: Any) -> None:
    """A GeoTIFF of pixels [C, H, W]."""
    import rasterio
    from rasterio.transform import from_origin

    path.parent.mkdir(parents=True, exist_ok=True)
    count, height, width = pixels.shape
    place = {"crs": "EPSG:32632", "transform": from_origin(500000, 5200000, 10, 10)}
    with rasterio.open(
        path, "w", driver="GTiff", count=count, height=height, width=width, dtype=pixels.dtype, **place
    ) as file:
        file.write(pixels)


if __name__ == "__main__":
    sys.exit(main())

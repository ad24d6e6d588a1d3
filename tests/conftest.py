"""Fixtures that every test may use. One CPU thread: sums in parallel regions depend on the number of threads."""

import os
import signal
import threading
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # tests with two threads share the cores with other tests
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_SILENT", "true")

# A shell starts background jobs with interrupts ignored, and every process below would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parent.parent


def _folder(variable: str, default: str) -> Path:
    path = Path(os.environ.get(variable, str(ROOT / default)))
    if not path.is_dir():
        pytest.skip(f"{path} is not there; set {variable} to the folder")
    return path


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of real images in official layouts."""
    return _folder("FEDRS_DATA", "../shared/data")


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> Path:
    """EuroSAT, 20 tiles of each class, two domains. Read only."""
    from fedrs_lightning.synth.eurosat.sample import EuroSATSample
    from fedrs_lightning.synth.sample import write_sample

    out = tmp_path_factory.mktemp("synthetic") / "sample"
    write_sample(out, EuroSATSample(domains=2))
    return out


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> Path:
    """BigEarthNet, ten summer patches of each of the eight countries and five more. Read only."""
    from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample
    from fedrs_lightning.synth.sample import write_sample

    out = tmp_path_factory.mktemp("synthetic") / "archive"
    write_sample(out, BigEarthNetSample())
    return out


def modulations(model):
    """Name and layer of every modulation, in the order of the network."""
    from fedrs_lightning.nn.modulation import Modulation  # some tests look at what is loaded

    return [(name, module) for name, module in model.named_modules() if isinstance(module, Modulation)]

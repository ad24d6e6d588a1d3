"""Start a network from a local file of weights. Nothing is downloaded and nothing is unpickled."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedrs_lightning.errors import ConfigError, check_choices

BandInit = Literal["mean", "random"]

_PREFIXES = ("", "model/", "model.", "module.")
_OLD_FILES_LACK = "num_batches_tracked"  # batch norm got its counter after many public weight files were made


@dataclass(frozen=True)
class WeightsReport:
    """What a weights file gave: plain values, for the record of a run.

    Attributes:
        path: the file as named.
        sha256: of its bytes.
        loaded: number of entries taken.
        adapted: entries changed on the way, with the reason.
        kept_initial: entries of the network that keep their initial values, with the reason.
    """

    path: str
    sha256: str
    loaded: int
    adapted: dict[str, str]
    kept_initial: dict[str, str]


def load_weights(
    network: nn.Module, path: Path, stem: str, classifier: str, band_init: BandInit = "mean"
) -> WeightsReport:
    """Copy a state dict from a file into `network`, in place.

    Names may carry a prefix `model/` (a state of this software), `model.` or `module.`; a torch file may hold the state
    dict under `state_dict`. A stem for m bands is adapted to n: every new filter is the mean over the m old ones times
    m / n, so that an image with the same value in all bands gives the same response; or it stays random.

    Args:
        network: the network to fill.
        path: safetensors (by its ending), or a torch file that `torch.load(weights_only=True)` accepts.
        stem: entry of the first convolution's weight, [O, bands, kh, kw].
        classifier: name of the last linear layer; it is skipped where the file has none or one for another number of
            classes, or where the network has none.
        band_init: `mean` or `random`, see above.

    Raises:
        ConfigError: the file is missing, unreadable, or holds another network.
    """
    check_choices(load_weights, locals())
    path = Path(path)
    found = _without_prefix(_read(path), stem, path)
    own = network.state_dict()
    adapted: dict[str, str] = {}
    kept: dict[str, str] = {}

    head = {name for name in own if name.startswith(f"{classifier}.")}
    if not head:  # an encoder has no classifier of its own
        found = {name: value for name, value in found.items() if not name.startswith(f"{classifier}.")}
    if any(name not in found or found[name].shape != own[name].shape for name in head):
        sizes = [len(found[name]) for name in head & found.keys() if found[name].dim()]
        reason = f"the file's classifier has {min(sizes)} classes" if sizes else "not in the file"
        kept |= dict.fromkeys(head, reason)
        found = {name: value for name, value in found.items() if name not in head}
    lacking = own.keys() - found.keys() - head
    kept |= {name: "not in the file" for name in lacking if name.endswith(_OLD_FILES_LACK)}
    if stem in found and _bands_differ(found[stem], own[stem]):
        bands, wanted = found[stem].shape[1], own[stem].shape[1]
        if band_init == "random":
            kept[stem] = f"the file's stem reads {bands} bands, this one {wanted}"
            del found[stem]
        else:
            adapted[stem] = f"mean of {bands} bands times {bands}/{wanted}"
            found[stem] = (found[stem].float().mean(1, keepdim=True) * (bands / wanted)).expand(own[stem].shape)

    _refuse_misfits(path, type(network).__name__, found, own, kept)
    with torch.no_grad():
        for name, value in found.items():
            own[name].copy_(value)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return WeightsReport(str(path), sha256, len(found), adapted, dict(sorted(kept.items())))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ConfigError(
            f"weights: no file {path}; nothing is downloaded, so put a state dict there or leave weights empty"
        )
    try:
        plain = path.suffix == ".safetensors"
        content = load_file(path) if plain else torch.load(path, map_location="cpu", weights_only=True)
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, KeyError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ConfigError(f"weights: {path} is neither safetensors nor a plain torch state dict ({line})") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError(f"weights: {path} does not hold a state dict (entry name -> tensor)")
    return content


def _without_prefix(content: dict[str, Tensor], stem: str, path: Path) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        if prefix + stem in content:
            return {name.removeprefix(prefix): value for name, value in content.items() if name.startswith(prefix)}
    some = ", ".join(list(content)[:3])
    raise ConfigError(
        f"weights: {path} has no entry '{stem}'; it begins with {some or 'nothing'}, which is another kind of network"
    )


def _refuse_misfits(
    path: Path, network: str, found: dict[str, Tensor], own: dict[str, Tensor], kept: dict[str, str]
) -> None:
    for what, names in (
        ("lacks", [name for name in own if name not in found and name not in kept]),
        ("has, and the network has not,", [name for name in found if name not in own]),
        ("has in another shape", [name for name in found if name in own and found[name].shape != own[name].shape]),
    ):
        if names:
            shape = f" ({list(found[names[0]].shape)}, not {list(own[names[0]].shape)})" if "shape" in what else ""
            raise ConfigError(
                f"weights: {path} {what} {len(names)} entries of this {network}, first {names[0]}{shape}; "
                "check backbone (encoder), width and stem, or leave weights empty"
            )


def _bands_differ(found: Tensor, own: Tensor) -> bool:
    return found.dim() == own.dim() == 4 and found.shape[1] != own.shape[1] and found.shape[::2] == own.shape[::2]


def require_counts(**arguments: int | None) -> None:
    """Refuse a network's argument below 1; null is left alone."""
    for name, value in arguments.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name}: {value} is below 1")

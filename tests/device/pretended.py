"""A device that is not there, for tests of what a run does on a GPU: torch's spare backend, played in Python.

Values lie in ordinary CPU tensors, so that a run on it computes real numbers, which can be compared with those of a CPU
bit by bit. Around every operation stands what CUDA would do: refuse tensors of two devices, `numpy()`, a CPU generator
and, where torch is asked for deterministic kernels, an operation that has none; and keep the process waiting where it
needs a value from the device. Waits are counted with the line of the package that caused them.

Registering a backend changes torch for the rest of the process, and gradients know only the devices that were there
before the first of them: everything here runs inside `apart`.

Not played: streams, events and pinned memory (a copy that is not to block never waits here), foreach and fused kernels
of optimisers, torch.compile, CUDA graphs, and the rounding of GPU kernels.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import lightning as L
import torch
from lightning.fabric.accelerators import Accelerator
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.fabric.strategies import SingleDeviceStrategy
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretended"
PACKAGE = "fedrs_lightning/"
ROOT = Path(__file__).resolve().parents[2]

READS = {
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "bincount",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
}
"""Operations whose result, or its size, the process must know."""

CROSSING = {"copy_", "_copy_from", "_to_copy", "_foreach_copy_"}
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}

NO_FIXED_ORDER = {
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "avg_pool3d_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "max_unpool2d",
    "max_unpool3d",
    "upsample_linear1d_backward",
    "upsample_bilinear2d_backward",
    "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward",
    "_upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa_backward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "nll_loss2d_forward",
    "nll_loss2d_backward",
    "_ctc_loss_backward",
    "histc",
    "kthvalue",
    "put_",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
}
"""Without a deterministic CUDA kernel: what `torch.use_deterministic_algorithms` says it refuses."""

HALF = ("conv1d", "conv2d", "conv3d", "linear", "matmul", "mm", "mv", "addmm", "addmv", "bmm", "baddbmm", "addbmm")
FULL = (
    *("exp", "log", "log1p", "expm1", "rsqrt", "reciprocal", "softplus", "softmax.int", "log_softmax.int"),
    *("sum", "sum.dim_IntList", "prod", "cumsum", "norm.Scalar", "linalg_vector_norm", "logsumexp"),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "layer_norm", "group_norm", "cosine_similarity", "nll_loss"),
    *("mse_loss", "binary_cross_entropy_with_logits", "upsample_bilinear2d.vec", "upsample_nearest2d.vec"),
)
"""What autocast computes in half precision, and what never in less than float32: the part of CUDA's lists in use."""


class Refused(RuntimeError):
    """CUDA would not do this."""


@dataclass
class Ledger:
    """What happened since the last `clear`, by `phase`: `step`, `visit` (of a client, outside its steps) or `round`.

    Only what the main thread waits for counts: others write behind, or load ahead. `visits` holds the waits of each.
    """

    phase: str = "round"
    waits: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    steps: int = 0
    visits: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.waits.clear()
        self.visits.clear()
        self.steps = 0

    def wait(self, what: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # what is written behind waits beside the training
        ours = [frame for frame in traceback.extract_stack() if PACKAGE in frame.filename]
        where = f"{ours[-1].filename.rpartition(PACKAGE)[2]}:{ours[-1].lineno}" if ours else "torch"
        self.waits[self.phase, where, what] += 1
        if self.phase == "visit":
            self.visits[-1] += 1

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before


LEDGER = Ledger()


class There(torch.Tensor):
    """A tensor on the device. `inner` holds its values; views of it hold views."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> There:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=device(), **layout)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, There):
            raise Refused("data of a tensor on another device")
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def __getitem__(self, key: Any) -> Any:  # torch would put a list onto the device, from memory that is not pinned
        keys = key if isinstance(key, tuple) else (key,)
        keys = tuple(torch.tensor(place) if isinstance(place, list) else place for place in keys)
        return super().__getitem__(keys)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise Refused(f"numpy() of a tensor on {NAME}")

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"There({self.inner!r})"


def compute(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operation: refused, noted, and computed on the values."""
    name = op._schema.name.removeprefix("aten::")
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, There)]
    here = [tensor for tensor in tensors if not isinstance(tensor, There)]
    wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    onto = bool(there) if wanted is None else wanted.type == NAME
    if name in ("copy_", "_foreach_copy_"):
        onto = isinstance(pytree.tree_leaves(args[0])[0], There)
    _refuse(name, op, there, here, onto, kwargs)
    _note(name, args, kwargs, there, here, onto)
    owners = {id(tensor.inner): tensor for tensor in there}

    def down(value: Any) -> Any:
        if isinstance(value, There):
            return value.inner
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value

    def up(value: torch.Tensor) -> torch.Tensor:
        if not onto:
            return value
        return owners[id(value)] if id(value) in owners else There(value)

    args, kwargs = pytree.tree_map(down, (args, kwargs))
    if name == "_to_copy" and wanted is not None:
        kwargs["non_blocking"] = False
    result = op(*args, **kwargs)
    for tensor in there:
        if tensor.shape != tensor.inner.shape:  # changed in place
            with torch._C._DisableTorchDispatch():
                torch.Tensor.data.__set__(tensor, There(tensor.inner))  # type: ignore[attr-defined]
    return pytree.tree_map_only(torch.Tensor, up, result)


def _refuse(name: str, op: Any, there: list[Any], here: list[Any], onto: bool, kwargs: dict[str, Any]) -> None:
    if kwargs.get("generator") is not None and (there or onto):
        raise Refused(f"{name}: a CPU generator for a tensor on {NAME}")
    numbers = torch.Tag.pointwise in op.tags or name in ("fill_", "masked_fill", "masked_fill_", "index_fill")
    scalars = numbers and all(tensor.dim() == 0 for tensor in here)
    if there and here and name not in CROSSING | INDEXING and not scalars:
        shapes = [tuple(tensor.shape) for tensor in there], [tuple(tensor.shape) for tensor in here]
        raise Refused(f"{name}: tensors {shapes[0]} on {NAME} and {shapes[1]} on cpu")
    loose = name in NO_FIXED_ORDER or (name == "bincount" and len(there) > 1) or op in _loose_overloads()
    if there and loose and torch.are_deterministic_algorithms_enabled():
        problem = f"{name} has no deterministic kernel"
        print(problem, file=sys.stderr, flush=True)  # torch ends the process where this happens in a backward pass
        raise Refused(problem)


def _loose_overloads() -> tuple[Any, ...]:
    return torch.ops.aten.median.dim, torch.ops.aten.nanmedian.dim


def _note(name: str, args: Any, kwargs: Any, there: list[Any], here: list[Any], onto: bool) -> None:
    if name in CROSSING:
        pairs = len(args[1]) if name == "_foreach_copy_" else 1
        source = pytree.tree_leaves(args[0] if name in ("_to_copy", "_copy_from") else args[1])[0]
        from_device = isinstance(source, There)
        waits = not _not_blocking(name, args, kwargs) and (from_device or source.dim() or name == "_to_copy")
        waits = waits and source.numel()  # nothing is copied without a word to the device
        if from_device != onto and waits:
            for _ in range(pairs):
                LEDGER.wait(f"{name} {'from' if from_device else 'to'} the device")
    elif name in INDEXING and there:
        places = [place for place in args[1] if place is not None]
        masked = any(place.dtype in (torch.bool, torch.uint8) for place in places)
        filled = name != "index" and name != "_unsafe_index" and args[2].numel() == 1
        if (masked and not filled) or any(not isinstance(place, There) for place in places):
            LEDGER.wait(name)
    elif name in READS and there:
        LEDGER.wait(name)


def _not_blocking(name: str, args: Any, kwargs: Any) -> bool:
    place = {"copy_": 2, "_copy_from": 2, "_foreach_copy_": 2}.get(name, len(args))
    return bool(args[place] if len(args) > place else kwargs.get("non_blocking"))


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_registered: list[Any] = []


def device() -> torch.device:
    """The device; the first call registers it."""
    if not _registered:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        every = torch.library.Library("_", "IMPL")  # factories have no tensor that would say where they belong
        every.fallback(lambda op, *args, **kwargs: compute(op, args, kwargs), "PrivateUse1")
        every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        _registered.append(every)
        for names, dtype in ((HALF, torch.bfloat16), (FULL, torch.float32)):
            for name in names:
                packet, _, overload = name.partition(".")
                library = torch.library.Library("aten", "IMPL")
                operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(name, _autocast(operation, dtype), "AutocastPrivateUse1")
                _registered.append(library)
    return torch.device(NAME, 0)


def _autocast(op: Any, dtype: torch.dtype) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        return (
            value.to(dtype)
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16)
            else value
        )

    def kernel(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*pytree.tree_map(cast, args), **kwargs)

    return kernel


class _Accelerator(Accelerator):
    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [device()]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


def launched(half: bool = False) -> L.Fabric:
    """A Fabric of one rank on the device, `bf16-mixed` if `half`."""
    plugins: list[Any] = [MixedPrecision("bf16-mixed", device=NAME)] if half else []
    strategy = SingleDeviceStrategy(device=device())
    fabric = L.Fabric(accelerator=_Accelerator(), devices=1, strategy=strategy, plugins=plugins)
    fabric.launch()
    return fabric


@contextmanager
def playing() -> Iterator[None]:
    """What torch cannot do for a backend in Python is replaced: inference mode, and `torch.tensor` with a device."""
    make = torch.tensor

    def tensor(values: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        made: torch.Tensor = make(values, **options)
        return made if device is None else made.to(device)

    def inference_mode(mode: bool = True) -> Any:
        return torch.no_grad() if mode else torch.enable_grad()

    with mock.patch("torch.inference_mode", inference_mode), mock.patch("torch.tensor", tensor):
        yield


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """What a function of a module of tests returns in a fresh process: there the device is known before any gradient.

    Raises:
        AssertionError: with the traceback of what the function raised.
    """
    with TemporaryDirectory() as folder:
        given, found = Path(folder) / "given", Path(folder) / "found"
        given.write_bytes(pickle.dumps((function.__module__, function.__name__, args)))
        command = [sys.executable, "-c", f"from {__name__} import _begin; _begin({str(given)!r}, {str(found)!r})"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return pickle.loads(found.read_bytes())


def _begin(given: str, found: str) -> None:
    status = 1
    try:
        module, name, args = pickle.loads(Path(given).read_bytes())
        torch.set_num_threads(1)
        device()
        with playing():
            result = getattr(importlib.import_module(module), name)(*args)
        Path(found).write_bytes(pickle.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # torch's threads for a device in Python cannot be ended

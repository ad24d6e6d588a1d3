"""Which errors are lost contact, and what ranks say that wait for one that never comes."""

import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from fedrs_lightning.engine.ranks.contact import contact, lost_contact
from fedrs_lightning.errors import LostContact

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CRASH = "This is typically caused by a remote worker crashing. Check the logs of the remote worker."


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError(f"{GLOO}pair.cc:561] Connection closed by peer [127.0.0.1]:13220. {CRASH}"),
            "Connection closed by peer [127.0.0.1]:13220",
        ),
        (
            RuntimeError(f"{GLOO}pair.cc:545] Read error [::1]:46221: Connection reset by peer. {CRASH}\nmore"),
            "Read error [::1]:46221: Connection reset by peer",
        ),
        (
            RuntimeError(f"{GLOO}unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete"),
            "Timed out waiting 2000ms for recv operation to complete",
        ),
        (
            RuntimeError("Gloo connectFullMesh failed with [/gloo/gloo/transport/tcp/pair.cc:150] no error"),
            "no error",
        ),
        (
            dist.DistNetworkError("failed to recv, got 0 bytes. Connection was likely closed."),
            "failed to recv, got 0 bytes. Connection was likely closed.",
        ),
        # defects and devices are no lost contact
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
        (RuntimeError("CUDA error: the launch timed out and was terminated"), None),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), None),
        (
            RuntimeError(f"[enforce fail at {GLOO[1:]}pair.cc:464] op.preamble.length <= op.nbytes. 8 vs 4. timeout"),
            None,
        ),
        (RuntimeError("Expected all tensors to be on the same device"), None),
        (ValueError("Connection closed by peer"), None),
    ],
)
def test_only_connections_that_break_are_lost_contact(error, reason):
    assert lost_contact(error) == reason
    if isinstance(error, RuntimeError):
        with pytest.raises(LostContact if reason else type(error)) as raised, contact():
            raise error
        assert (raised.value is error) == (reason is None)


RANK = """
import sys
import torch.distributed as dist
from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.engine.ranks.rendezvous import meet
from datetime import timedelta
import torch, os
rank, size, port, limit, task = *map(int, sys.argv[1:5]), sys.argv[5]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
try:
    store = meet("127.0.0.1", port, rank, size, limit)
    if task == "meet":
        sys.exit(0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    if rank == 1:
        os._exit(7)
    with contact():
        dist.recv(torch.zeros(9), 1)
except Exception as error:
    print(type(error).__name__, error)
    sys.exit(2)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ranks(numbers, size, limit, task="meet", port=None):
    """Output and exit code of real processes."""
    port = port or free_port()
    arguments = [str(size), str(port), str(limit), task]
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, str(number), *arguments], stdout=subprocess.PIPE, text=True)
        for number in numbers
    ]
    return [(one.communicate(timeout=120)[0].strip(), one.returncode) for one in started]


def test_a_rank_that_dies_is_lost_contact():
    (out, code), (_, other) = ranks([0, 1], 2, 60, "recv")
    assert (code, other) == (2, 7)
    assert out.startswith("LostContact lost contact with another rank (")


def test_ranks_that_wait_for_one_that_never_comes_say_which():
    start = time.monotonic()
    (first, code), (second, _) = ranks([0, 2], 4, 10)
    assert time.monotonic() - start < 60
    words = "2 of 4 ranks did not join within 10 s: rank 1, 3; start all of them, or raise fabric.join_timeout"
    assert (first, code) == (f"RunError {words}", 2)
    assert second.startswith("LostContact ")  # rank 0 has said it


def test_a_missing_rank_zero_is_said_by_those_that_wait():
    port = free_port()
    ((out, code),) = ranks([1], 2, 1, port=port)
    words = "1 of 2 ranks did not join within 1 s: rank 0; start all of them, or raise fabric.join_timeout"
    assert (out, code) == (f"RunError {words} (looked for at 127.0.0.1:{port})", 2)


def test_a_port_that_is_taken_is_said():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        ((out, code),) = ranks([0], 2, 5, port=port)
    words = (
        f"RunError rank 0 cannot listen at 127.0.0.1:{port} (Address already in use); set MASTER_PORT to a free port"
    )
    assert (out, code) == (words, 2)

"""Which errors mean that another rank is gone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch.distributed as dist

from fedrs_lightning.errors import LostContact

_CLOSED = re.compile(
    r"connection (closed|reset|refused|was likely closed)|broken pipe|socket closed|timed out|timeout|connectfullmesh|"
    r"(read|write) error|failed to (recv|send)|connection abort|no route to host|network is unreachable",
    re.IGNORECASE,
)


def lost_contact(error: BaseException) -> str | None:
    """Why the connection to another rank broke; None for any other error, also of a device.

    gloo has no class of errors of its own: its texts begin with the place in its source that raised them.
    """
    text = str(error).splitlines()[0] if str(error) else ""
    is_store = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
    is_gloo = isinstance(error, RuntimeError) and ("gloo/" in text or text.startswith("Gloo "))
    if not (is_store or is_gloo) or "enforce fail" in text or not _CLOSED.search(text):
        return None
    # "[/gloo/transport/tcp/pair.cc:545] Read error [::1]:46221: Connection reset by peer. This is typically ..."
    return text.rpartition("] ")[2].partition(". This is")[0]


@contextlib.contextmanager
def contact() -> Iterator[None]:
    """Around anything that talks to other ranks.

    Raises:
        LostContact: one is gone.
    """
    try:
        yield
    except RuntimeError as error:
        reason = lost_contact(error)
        if reason is None:
            raise
        problem = f"lost contact with another rank ({reason}), which says itself why"
        raise LostContact(f"{problem}; finished rounds are on disk, the same command continues") from None

"""Memory of a process and all its descendants together, where pages that several share count once."""

from __future__ import annotations

import re
import threading
from pathlib import Path

KINDS = ("own", "shared", "files")


def descendants(pid: int) -> list[int]:
    """The process and all processes that it started, and those that they started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(") ")[2].split()[1])
        except OSError:  # it has just ended
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def memory(pids: list[int]) -> dict[str, int]:
    """Bytes that processes hold together: own memory, shared memory, mapped files.

    The first two are proportional set sizes. Of mapped files, mostly the same libraries in all of them, the largest
    part in one process counts, since strangers on the machine that map the same libraries would take a share.
    """
    total = dict.fromkeys(KINDS, 0)
    for pid in pids:
        try:
            rollup, status = (Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status"))
        except OSError:  # it has just ended
            continue
        total["own"] += _bytes(rollup, "Pss_Anon")
        total["shared"] += _bytes(rollup, "Pss_Shmem")
        total["files"] = max(total["files"], _bytes(status, "RssFile"))
    return total


def _bytes(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0  # a process that is ending has none


class PeakMemory:
    """Samples the memory of processes and all their descendants until `stop`.

    Args:
        pids: to begin with.
        every: seconds between two samples. A sample takes about 10 ms a GB, of the kernel and of the process.
    """

    def __init__(self, pids: list[int], every: float = 0.05) -> None:
        self.pids, self.every = pids, every
        self.peak = dict.fromkeys(KINDS, 0)
        self.samples = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(self.every):
            found = memory([process for pid in self.pids for process in descendants(pid)])
            self.samples += 1
            if sum(found.values()) > sum(self.peak.values()):
                self.peak = found

    def stop(self) -> dict[str, int]:
        """The largest sample."""
        self._end.set()
        self._thread.join()
        return self.peak

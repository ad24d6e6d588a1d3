"""Ranks that one process starts end together, with one line that says why.

Rank 0 watches the ranks it started; each of them watches rank 0 (`cli.process.follow_rank_zero`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedrs_lightning.errors import LostContact, RunError

RANK_ZERO = "FEDRS_RANK_ZERO"
"""Environment variable by which a started rank knows the process that started it."""

ROUNDS_ARE_KEPT = "finished rounds are on disk, the same command continues from them"


class RankWatch(threading.Thread):
    """Ends all ranks when one dies, and when the user presses Ctrl-C while rank 0 waits for another rank.

    A wait for another rank happens in compiled code, where Python handles no signal; it ends when that rank does.

    Args:
        ranks: processes of rank 1, 2, ...

    Attributes:
        failure: what happened to the rank that died first; None while all is well.
        before_end: called after Ctrl-C before ranks that are well are ended; takes a few seconds at most.
    """

    before_end: Callable[[], None] | None = None

    def __init__(self, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
        super().__init__(daemon=True, name="rank-watch")
        self.ranks = ranks
        self.failure: str | None = None
        self.every, self.patience = 0.25, 8.0
        self._died, self._noticed, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._interrupts, self._wakeup = os.pipe()
        os.set_blocking(self._interrupts, False)
        os.set_blocking(self._wakeup, False)

    def begin(self) -> None:
        """Start watching; from the main thread, since signals are heard from there."""
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self.start()

    def end(self) -> None:
        """Stop listening to signals; the main thread needs no help any more."""
        self._ended.set()
        signal.set_wakeup_fd(-1)

    def failure_within(self, seconds: float) -> str | None:
        """What happened to the rank that died, as soon as it is known; None when none dies in that time."""
        self._noticed.set()
        return self.failure if self._died.wait(seconds) else None

    def run(self) -> None:
        """Look at all ranks until they have ended well, one has not, or Ctrl-C was pressed."""
        while not self._ended.wait(self.every):
            codes = [rank.poll() for rank in self.ranks]
            if any(codes):
                number = next(number for number, code in enumerate(codes, start=1) if code)
                self._report(number, self.ranks[number - 1])
                return
            if self._interrupted():
                if not self._ended.wait(1.0):
                    if self.before_end is not None:
                        self.before_end()
                    self._end_all()
                    self._leave(130, f"interrupted; {ROUNDS_ARE_KEPT}")
                return
            if None not in codes:
                return

    def _report(self, number: int, rank: subprocess.Popen[bytes]) -> None:
        code = rank.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.failure = f"rank {number} {how}; all ranks stop, {ROUNDS_ARE_KEPT}"
        self._end_all()
        self._died.set()
        # A rank 0 that waits in a collective notices by itself, one that trains is interrupted.
        if not self._noticed.wait(2.0) and not self._ended.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        self._leave(2, self.failure)

    def _leave(self, code: int, words: str) -> None:
        """End the process where the main thread does not come back, for example from waiting for a rank to join."""
        if not self._ended.wait(self.patience):
            stream = sys.__stderr__ or sys.stderr  # a progress bar stands in for the other
            clean = "\r\x1b[2K\x1b[?25h" if stream.isatty() else ""  # the line it draws on, and the cursor it hides
            print(f"{clean}fedrs fit: {words}", file=stream, flush=True)
            os._exit(code)

    def _interrupted(self) -> bool:
        try:
            return signal.SIGINT in os.read(self._interrupts, 64)
        except BlockingIOError:
            return False

    def _end_all(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()


@contextlib.contextmanager
def naming_the_dead_rank(watch: RankWatch | None) -> Iterator[None]:
    """Say which rank died instead of what that did to this one.

    Raises:
        RunError: a rank that this process started has died.
    """
    try:
        yield
    except (LostContact, RuntimeError, KeyboardInterrupt) as error:
        # A lost connection comes before the news of what became of the process behind it.
        failure = watch.failure_within(0.0 if isinstance(error, KeyboardInterrupt) else 5.0) if watch else None
        if failure is not None:
            raise RunError(failure) from None
        raise


@contextlib.contextmanager
def before_ranks_end(fabric: Any, action: Callable[[], None]) -> Iterator[None]:
    """Within the body, Ctrl-C lets `action` run before it ends other ranks that this process started."""
    watch: RankWatch | None = getattr(fabric.strategy.launcher, "watch", None)
    if watch is not None:
        watch.before_end = action
    try:
        yield
    finally:
        if watch is not None:
            watch.before_end = None


@contextlib.contextmanager
def watching_ranks(fabric: Any) -> Iterator[None]:
    """`naming_the_dead_rank`, for a run on a launched Fabric; afterwards nobody is watched any more."""
    watch: RankWatch | None = getattr(fabric.strategy.launcher, "watch", None)
    try:
        with naming_the_dead_rank(watch):
            yield
    finally:
        if watch is not None:
            watch.end()

"""Work on chunks, in this process or spread over others."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from fedrs_lightning.errors import RunError

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    """Results of `work`, a function that can be pickled, for each item, in order; with 1 process in this one.

    Raises:
        RunError: a process died.
    """
    if processes == 1:
        yield from map(work, items)
        return
    # New processes instead of forked ones: a fork would copy the locks of whatever threads this process has. They leave
    # an interrupt to this process, which then drops what they have not begun.
    context, ignored = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(processes, context, initializer=signal.signal, initargs=ignored) as pool:
        try:
            yield from pool.map(work, items)
        except BrokenProcessPool:
            reason = "was memory short? does your script lack if __name__ == '__main__'?"
            raise RunError(f"a process that painted patches died ({reason}); run the command again") from None
        finally:
            pool.shutdown(cancel_futures=True)

"""Items made by a thread while the caller works on the ones before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(make: Callable[[], Iterator[Item]], depth: int) -> Iterator[Item]:
    """What `make()` yields, in order, made up to `depth` items ahead.

    One thread, so that files, memory maps and devices see the same order of calls as without. What it raises is raised
    here, after the items before it. When the caller stops early, the thread has ended before `close` returns.

    Args:
        make: gives the items; runs in the thread.
        depth: items that wait; 0 makes them in the caller's own thread.
    """
    if depth < 1:
        yield from make()
        return
    made: queue.Queue[object] = queue.Queue(depth)
    stop = threading.Event()
    failure: list[BaseException] = []

    def put(item: object) -> bool:
        while not stop.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        items = make()
        try:
            for item in items:
                if not put(item):
                    break
        except BaseException as error:  # whatever it is, the caller gets it
            failure.append(error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            put(_END)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            yield item  # type: ignore[misc]
        if failure:
            raise failure[0]
    finally:
        stop.set()
        while not made.empty():  # a thread that waits for room sees it
            made.get_nowait()
        thread.join()

"""What a rank writes while it already trains on: one thread, one piece of work after the other."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

Work = Callable[[], None]


class Writer:
    """Does work strictly in the order in which it is handed in, and none after a failure, which the caller meets later.

    Args:
        behind: False does every piece of work before `submit` returns; order and errors are the same.

    Attributes:
        failure: what went wrong; whatever was or is handed in after that is left undone.
        ending: set when the run ends by an error, so that work waits for no other rank longer than it must.
    """

    def __init__(self, behind: bool = True) -> None:
        self.behind = behind
        self.failure: BaseException | None = None
        self.ending = threading.Event()
        self._waited = 0.0
        self._seconds: deque[float] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[bool] | None = None

    def submit(self, work: Work) -> Future[bool]:
        """Hand in work; what it uses must not change any more.

        Returns:
            Whether it was done, once that is known.

        Raises:
            BaseException: the failure of earlier work, or of this one where nothing is written behind.
        """
        self.check()
        if self.behind:
            self._pool = self._pool or ThreadPoolExecutor(1, "writer")
            self._last = self._pool.submit(self._do, work)
            return self._last
        done: Future[bool] = Future()
        with self.waiting():
            done.set_result(self._do(work))
        self.check()
        return done

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def wait(self, done: Future[bool] | None) -> None:
        """Until this work is done; raises the failure that kept it from being done."""
        if done is not None:
            with self.waiting():
                done.result()
        self.check()

    def drain(self) -> None:
        """Until all work is done, as `wait`; afterwards there is no thread until work is handed in again."""
        self.wait(self._last)
        self._close()

    def end(self, seconds: float, needed: Future[bool] | None = None) -> None:
        """After an error elsewhere: give what was handed in so much time, and leave undone what then remains.

        Args:
            seconds: at most.
            needed: the last work that counts; None means all.
        """
        self.idle(seconds, needed)
        self._close()

    def idle(self, seconds: float, needed: Future[bool] | None = None) -> None:
        """Wait so long at most, without an error, while `ending` is set."""
        self.ending.set()
        needed = needed or self._last
        if needed is not None:
            wait([needed], seconds)

    def take(self) -> dict[str, float]:
        """Since the last call: `behind`, seconds of finished work, and `wait`, seconds that callers waited for it."""
        behind, waited, self._waited = 0.0, self._waited, 0.0
        while self._seconds:
            behind += self._seconds.popleft()
        return {"behind": behind, "wait": waited}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what the thread that trains waits for; counted as `wait`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - start

    def _do(self, work: Work) -> bool:
        if self.failure is not None:
            return False
        start = time.perf_counter()
        try:
            work()
        except BaseException as error:
            self.failure = error  # raised by `check` in the thread that trains
        finally:
            self._seconds.append(time.perf_counter() - start)
        return self.failure is None

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._last = None

"""StreamThreads: the threads of a session's streams, and the queue that they serve.

A thread is started when a request finds no stream that is idle, and sleeps while there is none. It
does not hold the session. All of them end when the session is closed or collected; what waits then
is served before. At the end of the interpreter they are joined: none runs while it is torn down.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque

from microkernels.errors import QueueFullError, SessionClosedError

from .requests import Request

_CLOSED = "this session is closed and takes no more requests; make another one"
_running: weakref.WeakSet[StreamThreads] = weakref.WeakSet()


class StreamThreads:
    """A bounded queue of requests and the threads that serve it.

    Parameters
    ----------
    count : int
        The most threads, which is how many requests are served at once.
    queue_size : int
        The most requests that wait.
    """

    def __init__(self, count: int, queue_size: int) -> None:
        self._count, self._size = count, queue_size
        self._queue: deque[Request] = deque()
        # Reentrant: the garbage collector may call `stop` while this thread holds it.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False
        self._process = os.getpid()

    def put(self, request: Request, timeout: float | None) -> None:
        """Puts a request into the queue.

        Parameters
        ----------
        request : Request
            The request.
        timeout : float or None
            Seconds to wait for room; None: as long as it takes. A stream's own thread, in which
            callbacks run, never waits: it is the one to make room.

        Raises
        ------
        QueueFullError
            If there is no room in time.
        SessionClosedError
            If the session is closed.
        """
        with self._lock:
            if self._process != os.getpid():
                self._forget_threads()
            if threading.current_thread() in self._threads:
                timeout = 0.0
            if not self._wait_for_room(timeout):
                raise QueueFullError(
                    f"{self._size} requests wait already, as many as queue_size allows; wait for "
                    "results before more are sent, or make the session with a larger queue_size"
                )
            if self._closed:
                raise SessionClosedError(_CLOSED)
            self._queue.append(request)
            if len(self._queue) > self._idle and len(self._threads) < self._count:
                self._start()
            else:
                self._arrived.notify()

    def _wait_for_room(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while len(self._queue) >= self._size and not self._closed:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._room.wait(left)
        return True

    def _start(self) -> None:
        number = len(self._threads) + 1
        # Of a daemon: else the interpreter would wait for it before it can be told to end.
        thread = threading.Thread(
            target=self._serve, name=f"tvm_hybrid stream {number}", daemon=True
        )
        _running.add(self)
        self._threads.append(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.remove(thread)
            if not self._threads:  # nobody would serve it
                self._queue.pop()
                raise

    def _serve(self) -> None:
        while (request := self._next()) is not None:
            request.serve()
            del request  # and with it, perhaps, the session

    def _next(self) -> Request | None:
        """The next request; None when there will be none."""
        with self._lock:
            while not self._queue:
                if self._closed:
                    return None
                self._idle += 1
                try:
                    self._arrived.wait()
                finally:
                    self._idle -= 1
            self._room.notify()
            return self._queue.popleft()

    def stop(self, cancel: bool = False) -> None:
        """Takes no more requests; threads end when those that wait are served.

        Parameters
        ----------
        cancel : bool
            Whether those that wait fail instead.
        """
        with self._lock:
            self._closed = True
            cancelled = list(self._queue) if cancel else []
            if cancel:
                self._queue.clear()
            self._arrived.notify_all()
            self._room.notify_all()
        for request in cancelled:
            request.fail(SessionClosedError("this session was closed before the request was run"))

    def join(self) -> None:
        """Waits until all threads have ended, but for the calling one."""
        for thread in list(self._threads):
            if thread is not threading.current_thread() and self._process == os.getpid():
                thread.join()

    def alive(self) -> int:
        """How many threads there are."""
        return sum(thread.is_alive() for thread in self._threads)

    def _forget_threads(self) -> None:
        """In a forked process, which has none of them, nor anybody who waits for results."""
        self._threads, self._idle, self._process = [], 0, os.getpid()
        self._queue.clear()


@atexit.register
def _end_all() -> None:
    """What waits is served, and no thread is left."""
    streams = list(_running)
    for each in streams:
        each.stop()
    for each in streams:
        each.join()

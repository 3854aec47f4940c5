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
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np

from microkernels.base.errors import QueueFullError, SessionClosedError
from microkernels.base.logs import logger

CLOSED = "this session is closed and takes no more requests; make another one"
T = TypeVar("T")
_alive: weakref.WeakSet[StreamThreads] = weakref.WeakSet()


class StreamThreads:
    """A bounded queue of requests and the threads that serve it, first come, first served.

    A caller who waits anyhow runs in his own thread if a stream is free; else his request waits in
    the same queue. A stream's thread serves it then: its memory is still in the caches, and no core
    is idle until the next caller has woken up.

    Parameters
    ----------
    count : int
        How many runs there are at once at most, those of callers included.
    queue_size : int
        The most requests of callers who do not wait that are in the queue.

    Attributes
    ----------
    is_closed : bool
        Whether it takes no more requests.
    """

    def __init__(self, count: int, queue_size: int) -> None:
        self._count, self._size = count, queue_size
        self._queue: deque[Request] = deque()
        self._bounded = 0  # requests in the queue that queue_size counts
        # Reentrant: the garbage collector may call `stop` while this thread holds it.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._threads: dict[int, threading.Thread] = {}
        self._running = 0
        self._idle = 0
        self.is_closed = False
        self._process = os.getpid()

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Calls a function for a caller who waits, when it is his turn; returns its result.

        Raises
        ------
        SessionClosedError
            If the session is closed.
        Exception
            What the function raises.
        """
        if threading.get_ident() in self._threads:  # a callback, whose stream has its turn
            return function(*arguments, **named)
        with self._lock:
            self._require_open()
            waits = bool(self._queue) or self._running >= self._count
            if waits:
                request = FutureRequest(partial(function, **named), *arguments)
                self._put(request)
            else:
                self._running += 1
        if waits:
            try:
                return request.future.result()
            except BaseException:  # Ctrl-C, too
                request.future.cancel()
                raise
            finally:
                del request  # which holds the error, and by that this frame
        try:
            return function(*arguments, **named)
        finally:
            self._end_run()

    def put(self, request: Request, timeout: float | None) -> None:
        """Puts a request of a caller who does not wait into the queue.

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
        if threading.get_ident() in self._threads:
            timeout = 0.0
        with self._lock:
            self._require_open()
            if not self._wait_for_room(timeout):
                raise QueueFullError(
                    f"{self._size} requests wait already, as many as queue_size allows; wait for "
                    "results before more are sent, or make the session with a larger queue_size"
                )
            self._require_open()
            request.bounded = True
            self._bounded += 1
            self._put(request)

    def _require_open(self) -> None:
        if self.is_closed:
            raise SessionClosedError(CLOSED)
        if self._process != os.getpid():  # forked: there are no threads, and nobody waits
            self._threads, self._process = {}, os.getpid()
            self._running = self._idle = self._bounded = 0
            self._queue.clear()

    def _put(self, request: Request) -> None:
        self._queue.append(request)
        if len(self._queue) > self._idle and len(self._threads) < self._count:
            self._start()
        else:
            self._arrived.notify()

    def _wait_for_room(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while self._bounded >= self._size and not self.is_closed:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._room.wait(left)
        return True

    def _start(self) -> None:
        number = len(self._threads) + 1
        # A daemon: else the interpreter would wait for it before it can be told to end.
        thread = threading.Thread(
            target=self._serve, name=f"tvm_hybrid stream {number}", daemon=True
        )
        _alive.add(self)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:  # nobody would serve it
                self._drop(self._queue.pop())
                raise
            logger.warning("only %d streams of %d: %s", number - 1, self._count, error)
        else:
            self._threads[thread.ident or 0] = thread

    def _serve(self) -> None:
        while (request := self._next()) is not None:
            request.serve()
            del request  # and with it, perhaps, the session
            self._end_run()

    def _next(self) -> Request | None:
        """The next request, whose turn begins; None when there will be none."""
        with self._lock:
            while not self._queue or self._running >= self._count:
                if self.is_closed and not self._queue:
                    return None
                self._idle += 1
                try:
                    self._arrived.wait()
                finally:
                    self._idle -= 1
            self._running += 1
            return self._drop(self._queue.popleft())

    def _drop(self, request: Request) -> Request:
        """A request that was taken out of the queue."""
        if request.bounded:
            self._bounded -= 1
            self._room.notify()
        return request

    def _end_run(self) -> None:
        with self._lock:
            self._running -= 1
            if self._queue:
                self._arrived.notify()

    def stop(self, cancel: bool = False) -> None:
        """Takes no more requests; threads end when those that wait are served.

        Parameters
        ----------
        cancel : bool
            Whether those that wait fail instead.
        """
        with self._lock:
            self.is_closed = True
            cancelled = [self._drop(each) for each in self._queue] if cancel else []
            if cancel:
                self._queue.clear()
            self._arrived.notify_all()
            self._room.notify_all()
        for request in cancelled:
            request.fail(SessionClosedError("this session was closed before the request was run"))

    def join(self) -> None:
        """Waits until all threads have ended, but for the calling one."""
        if self._process == os.getpid():
            for thread in list(self._threads.values()):
                if thread is not threading.current_thread():
                    thread.join()

    def alive(self) -> int:
        """How many threads there are."""
        return sum(thread.is_alive() for thread in list(self._threads.values()))


@atexit.register
def _end_all() -> None:
    """What waits is served, and no thread is left."""
    streams = list(_alive)
    for each in streams:
        each.stop()
    for each in streams:
        each.join()


Results = list[np.ndarray]
Callback = Callable[[Results, Any, str], object]


class Request:
    """What to call, and where the results go.

    It holds the session: what waits is served, even if nobody else has the session any more.

    Parameters
    ----------
    call : callable
        A method of the session.
    *arguments
        What it is called with.

    Attributes
    ----------
    bounded : bool
        Whether the queue's size counts it.
    """

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._call, self._arguments = call, arguments
        self.bounded = False

    def serve(self) -> None:
        """Makes the call, and hands over its results or its error; raises nothing."""
        if not self.begins():
            return
        try:
            results = self._call(*self._arguments)
        except BaseException as error:  # the stream goes on; whoever asked is told
            self.fail(error)
        else:
            self.finish(results)

    def begins(self) -> bool:
        """Whether it is still wanted; nobody can take it back any more."""
        return True

    def finish(self, results: Any) -> None:
        """Hands over the results."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Hands over why there are none."""
        raise NotImplementedError


class FutureRequest(Request):
    """One whose results are awaited.

    Attributes
    ----------
    future : concurrent.futures.Future
        Gets the results.
    """

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(call, *arguments)
        self.future: Future[Any] = Future()

    def begins(self) -> bool:
        """False if the future was cancelled."""
        return self.future.set_running_or_notify_cancel()

    def finish(self, results: Any) -> None:
        """Results of the future."""
        self.future.set_result(results)

    def fail(self, error: BaseException) -> None:
        """An exception of the future, unless it was cancelled."""
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class CallbackRequest(Request):
    """One whose results are given to a function, as ONNX Runtime's `run_async` does.

    Parameters
    ----------
    callback : callable
        Takes results, `user_data` and an error's text.
    user_data : Any
        Handed on to it.
    call, *arguments
        As for `Request`.
    """

    def __init__(
        self, callback: Callback, user_data: Any, call: Callable[..., Any], *arguments: Any
    ) -> None:
        super().__init__(call, *arguments)
        self._callback, self._user_data = callback, user_data

    def finish(self, results: Any) -> None:
        """Results, and no error."""
        self._tell(results, "")

    def fail(self, error: BaseException) -> None:
        """No results, and the error's text."""
        self._tell([], str(error) or type(error).__name__)

    def _tell(self, results: Results, error: str) -> None:
        try:
            self._callback(results, self._user_data, error)
        except Exception:
            logger.exception("the callback of run_async, %r, has failed", self._callback)

"""StreamThreads: the threads of a session's streams, and the queue that they serve.

AsyncRuns is the part of a session that uses them, for callers that do not wait.

A thread is started when a request finds no idle stream, and sleeps while there is no request. It
does not keep the session alive. All threads end when the session is closed or collected, after they
have served waiting requests. They are joined at interpreter exit, so that none runs while it shuts
down.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from microkernels.base import errors
from microkernels.base.logs import logger

from .threads import ThreadsLike

CLOSED = "this session is closed and takes no more requests; make another one"
T = TypeVar("T")
_alive: weakref.WeakSet[StreamThreads] = weakref.WeakSet()


class StreamThreads:
    """A bounded queue of requests and the threads that serve it, first come, first served.

    A caller that waits for its result runs in its own thread if a stream is free; else its request
    waits in the queue. Then a stream's thread serves it: its memory is still in the caches, and no
    core is idle until the caller has woken up.

    Parameters
    ----------
    count : int
        Most concurrent runs, those of waiting callers included.
    queue_size : int
        Most queued requests of callers that do not wait.

    Attributes
    ----------
    is_closed : bool
        Whether it refuses further requests.
    """

    def __init__(self, count: int, queue_size: int) -> None:
        self._count, self._size = count, queue_size
        self._queue: deque[Request] = deque()
        self._bounded = 0  # queued requests that count against queue_size
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
        """Calls a function for a caller that waits, in its turn; returns the result.

        Raises
        ------
        SessionClosedError
            If the session is closed.
        Exception
            An exception of the function.
        """
        if threading.get_ident() in self._threads:  # a callback: its stream has the turn already
            return function(*arguments, **named)
        with self._lock:
            self._require_open()
            waits = bool(self._queue) or self._running >= self._count
            if waits:
                request = Request(partial(function, **named), *arguments)
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
                del request  # it holds the error, which holds this frame
        try:
            return function(*arguments, **named)
        finally:
            self._end_run()

    def put(self, request: Request, timeout: float | None) -> None:
        """Queues a request of a caller that does not wait.

        Parameters
        ----------
        request : Request
            The request.
        timeout : float or None
            Seconds to wait for room; None: without limit. A stream's own thread, which runs
            callbacks, never waits, because it must make the room.

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
                raise errors.QueueFullError(
                    f"{self._size} requests wait already, as many as queue_size allows; wait for "
                    "results before more are sent, or make the session with a larger queue_size"
                )
            self._require_open()
            request.bounded = True
            self._bounded += 1
            self._put(request)

    def _require_open(self) -> None:
        if self.is_closed:
            raise errors.SessionClosedError(CLOSED)
        if self._process != os.getpid():  # after a fork: no threads, and no waiting callers
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
        # A daemon thread: else the interpreter would wait for it before `_end_all` can end it.
        thread = threading.Thread(
            target=self._serve, name=f"tvm_hybrid stream {number}", daemon=True
        )
        _alive.add(self)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:  # no thread would serve it
                self._drop(self._queue.pop())
                raise
            logger.warning("only %d streams of %d: %s", number - 1, self._count, error)
        else:
            self._threads[thread.ident or 0] = thread

    def _serve(self) -> None:
        while (request := self._next()) is not None:
            request.serve()
            del request  # it may hold the last reference to the session
            self._end_run()

    def _next(self) -> Request | None:
        """Waits for the next request and its turn; None when the queue is closed and empty."""
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
        """Updates the counts for a request that was taken out of the queue."""
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
        """Refuses further requests; threads end when waiting requests are served.

        Parameters
        ----------
        cancel : bool
            Whether waiting requests fail instead.
        """
        with self._lock:
            self.is_closed = True
            cancelled = [self._drop(each) for each in self._queue] if cancel else []
            if cancel:
                self._queue.clear()
            self._arrived.notify_all()
            self._room.notify_all()
        for request in cancelled:
            request.fail(
                errors.SessionClosedError("this session was closed before the request was run")
            )

    def join(self) -> None:
        """Waits until all threads but the calling one have ended."""
        if self._process == os.getpid():
            for thread in list(self._threads.values()):
                if thread is not threading.current_thread():
                    thread.join()

    def alive(self) -> int:
        """Number of living threads."""
        return sum(thread.is_alive() for thread in list(self._threads.values()))


@atexit.register
def _end_all() -> None:
    """Serves all waiting requests, and ends all threads."""
    streams = list(_alive)
    for each in streams:
        each.stop()
    for each in streams:
        each.join()


Names = Sequence[str] | None
Results = list[np.ndarray]
Callback = Callable[[Results, Any, str], object]


class Request:
    """A call, and the future that gets its result.

    It keeps the session alive: waiting requests are served even if no one else holds the session.

    Parameters
    ----------
    call : callable
        A method of the session.
    *arguments
        Its arguments.

    Attributes
    ----------
    bounded : bool
        Whether it counts against the queue's size.
    future : concurrent.futures.Future
        Gets the result, or the error.
    """

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._call, self._arguments = call, arguments
        self.bounded = False
        self.future: Future[Any] = Future()

    def serve(self) -> None:
        """Makes the call and sets the future's result or error, unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            results = self._call(*self._arguments)
        except BaseException as error:  # the stream must go on; the future reports the error
            self.future.set_exception(error)
            del self  # its future holds the error, which holds this frame
        else:
            self.future.set_result(results)

    def fail(self, error: BaseException) -> None:
        """Sets the future's error, unless it was cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


QUEUED_PER_STREAM = 4
MOST_STREAMS = 1024
_RUNS = ("run", "run_with_iobinding")
_NO_PLACE = (
    "which streams do not share out; compile or load it with a number of threads, and bind the "
    "whole process, by taskset or os.sched_setaffinity"
)

Self = TypeVar("Self", bound="AsyncRuns")


class AsyncRuns:
    """The part of a session that manages streams; see docs/serving.md."""

    if TYPE_CHECKING:

        def run(self, output_names: Names, input_feed: Any, run_options: Any = None) -> Results:
            """Runs the model."""

    def _make_streams(
        self, streams: int | None, queue_size: int | None, threads: ThreadsLike
    ) -> None:
        """Checks the options and makes a queue; threads are started when needed."""
        _require_count("streams", streams, MOST_STREAMS)
        _require_count("queue_size", queue_size)
        if streams is not None and not isinstance(threads, int | None):
            raise errors.TargetError(
                errors.Argument("threads", value=threads), f" is a place, {_NO_PLACE}"
            )
        self._streams = streams
        self._direct: dict[str, Callable[..., Any]] = {}
        self._threads_of_all = 0
        count = streams or 1
        self._requests = StreamThreads(count, queue_size or QUEUED_PER_STREAM * count)
        weakref.finalize(self, self._requests.stop).atexit = False

    def _require_unbound(self, cpus: tuple[int, ...]) -> None:
        """Refuses streams of a bound program: all streams would be bound to the same CPUs."""
        if cpus and (self._streams or 1) > 1:
            raise errors.TargetError(f"this model's threads are bound to CPUs {cpus}, {_NO_PLACE}")

    def _share_of(self, threads: int) -> int:
        """Divides threads among the streams; logs the result."""
        if self._streams is None:
            return threads
        self._threads_of_all = threads
        share = max(1, threads // self._streams)
        logger.info("%s", self._stream_note(share))
        return share

    def _stream_note(self, each: int) -> str:
        """Describes the streams' threads, for `explain` and the log; "" without streams."""
        if self._streams is None:
            return ""
        text = f"{self._streams} stream{'s' * (self._streams > 1)} of {each} thread"
        text += f"{'s' * (each > 1)} each"
        left = self._threads_of_all - self._streams * each
        if self._threads_of_all and left > 0:
            text += f", {left} of {self._threads_of_all} threads left over"
        if self._threads_of_all and left < 0:
            text += f", more than the {self._threads_of_all} threads asked for"
        return text

    def _finish(self) -> None:
        """Makes `run` and `run_with_iobinding` wait for their turn if there are streams."""
        if self._streams is not None:
            call = self._requests.call
            self._direct = {name: getattr(self, name) for name in _RUNS}
            self.__dict__.update({name: partial(call, self._direct[name]) for name in _RUNS})

    def _direct_run(self) -> Callable[..., Results]:
        """Returns the `run` that does not wait for a turn."""
        return self._direct.get("run", self.run)

    def submit(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        timeout: float | None = None,
    ) -> Future[Results]:
        """Lets a stream run the model, and returns immediately.

        Parameters
        ----------
        output_names, input_feed, run_options
            See `run`. Arrays are read when the request runs: do not change them before.
        timeout : float, optional
            Seconds to wait for room in a full queue; 0 does not wait, None waits without limit. A
            callback of `run_async` never waits.

        Returns
        -------
        concurrent.futures.Future
            Its result is what `run` returns, its exception what `run` raises. It can be cancelled
            until a stream takes it, and awaited by `asyncio.wrap_future`.

        Raises
        ------
        QueueFullError
            If there is no room in the queue in time.
        SessionClosedError
            If the session is closed.
        """
        run = self._direct_run()
        request = Request(run, output_names, input_feed, run_options)
        self._requests.put(request, timeout)
        return request.future

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """Lets a stream run the model and call a function, like ONNX Runtime's `run_async`.

        It waits for room in a full queue, except in a callback.

        Parameters
        ----------
        output_names, input_feed, run_options
            See `submit`.
        callback : callable
            Called as `callback(results, user_data, error)` in the stream's thread: with a list of
            arrays and "", or with an empty list and the error's text. It blocks its stream, so it
            should be short; its exceptions are logged.
        user_data : Any
            Passed to the callback.

        Raises
        ------
        FeedError
            If the callback is not callable.
        QueueFullError
            If it is called in a callback while the queue is full.
        SessionClosedError
            If the session is closed.
        """
        if not callable(callback):
            raise errors.FeedError(
                f"callback must be a function of results, user_data and error, not {callback!r}"
            )
        request = Request(self._direct_run(), output_names, input_feed, run_options)
        request.future.add_done_callback(partial(_tell, callback, user_data))
        self._requests.put(request, None)

    def close(self, cancel: bool = False) -> None:
        """Ends the session's threads; it refuses further requests and calls of `run`.

        A session that is collected, or left as a context manager, is closed as well.

        Parameters
        ----------
        cancel : bool
            Whether waiting requests fail with SessionClosedError; else they are served first.
        """
        self._requests.stop(cancel)
        self.__dict__.update(dict.fromkeys(_RUNS, _refuse))
        self._requests.join()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _tell(callback: Callback, user_data: Any, future: Future[Results]) -> None:
    error = future.exception()
    try:
        if error is None:
            callback(future.result(), user_data, "")
        else:
            callback([], user_data, str(error) or type(error).__name__)
    except Exception:
        logger.exception("the callback of run_async, %r, has failed", callback)


def _refuse(*_arguments: Any, **_named: Any) -> NoReturn:
    raise errors.SessionClosedError(CLOSED)


def _require_count(name: str, value: Any, most: int | None = None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.TargetError(f"{name} must be a whole number from 1 up, not {value!r}")
    if most is not None and value > most:
        raise errors.TargetError(f"{name} must be at most {most}, not {value}")

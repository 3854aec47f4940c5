"""AsyncRuns: what an InferenceSession offers to callers who do not wait."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from microkernels.base.errors import Argument, FeedError, SessionClosedError, TargetError
from microkernels.base.logs import logger

from .stream_threads import CLOSED, Callback, CallbackRequest, FutureRequest, Results, StreamThreads
from .threads import ThreadsLike

QUEUED_PER_STREAM = 4
MOST_STREAMS = 1024
_RUNS = ("run", "run_with_iobinding")
_NO_PLACE = (
    "which streams do not share out; compile or load it with a number of threads, and bind the "
    "whole process, by taskset or os.sched_setaffinity"
)

Self = TypeVar("Self", bound="AsyncRuns")


class AsyncRuns:
    """The part of a session that has streams; see docs/serving.md."""

    if TYPE_CHECKING:

        def run(
            self,
            output_names: Sequence[str] | None,
            input_feed: Mapping[str, Any],
            run_options: Any = None,
        ) -> Results:
            """Runs the model."""

    def _make_streams(
        self, streams: int | None, queue_size: int | None, threads: ThreadsLike
    ) -> None:
        """Checks the options and makes a queue; its threads are started when they are needed."""
        _require_count("streams", streams, MOST_STREAMS)
        _require_count("queue_size", queue_size)
        if streams is not None and not isinstance(threads, int | None):
            raise TargetError(Argument("threads", value=threads), f" is a place, {_NO_PLACE}")
        self._streams = streams
        self._direct: dict[str, Callable[..., Any]] = {}
        self._threads_of_all = 0
        count = streams or 1
        self._requests = StreamThreads(count, queue_size or QUEUED_PER_STREAM * count)
        weakref.finalize(self, self._requests.stop).atexit = False

    def _require_unbound(self, cpus: tuple[int, ...]) -> None:
        """Refuses streams of a program whose workers are bound: all would be bound to the same."""
        if cpus and (self._streams or 1) > 1:
            raise TargetError(f"this model's threads are bound to CPUs {cpus}, {_NO_PLACE}")

    def _share_of(self, threads: int) -> int:
        """Threads of one stream, if all have so many; the log says what that makes."""
        if self._streams is None:
            return threads
        self._threads_of_all = threads
        share = max(1, threads // self._streams)
        logger.info("%s", self._stream_note(share))
        return share

    def _stream_note(self, each: int) -> str:
        """How threads are shared out, for `explain` and the log; "" without streams."""
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

    def _limit_runs(self) -> None:
        """Lets runs that are called wait for their turn, if there are streams."""
        if self._streams is not None:
            call = self._requests.call
            self._direct = {name: getattr(self, name) for name in _RUNS}
            self.__dict__.update({name: partial(call, self._direct[name]) for name in _RUNS})

    def _direct_run(self) -> Callable[..., Results]:
        """What runs without waiting for a turn."""
        return self._direct.get("run", self.run)

    def submit(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        timeout: float | None = None,
    ) -> Future[Results]:
        """Has a stream run the model; the caller goes on.

        Parameters
        ----------
        output_names, input_feed, run_options
            As for `run`. Arrays are read when the request is run: leave them as they are until
            then.
        timeout : float, optional
            Seconds to wait for room in the queue if it is full; 0 does not wait, None waits as
            long as it takes. A callback of `run_async` never waits.

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
        request = FutureRequest(run, output_names, input_feed, run_options)
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
        """Has a stream run the model and call a function, as ONNX Runtime's `run_async`.

        It waits for room in the queue if that is full; in a callback it does not.

        Parameters
        ----------
        output_names, input_feed, run_options
            As for `submit`.
        callback : callable
            Is called as `callback(results, user_data, error)` in the stream's thread: with a list
            of arrays and "", or with an empty list and the error's text. It holds up its stream,
            so it should be short; an exception in it is logged.
        user_data : Any
            Handed on to the callback.

        Raises
        ------
        FeedError
            If the callback cannot be called.
        QueueFullError
            If it is called in a callback while the queue is full.
        SessionClosedError
            If the session is closed.
        """
        if not callable(callback):
            raise FeedError(
                f"callback must be a function of results, user_data and error, not {callback!r}"
            )
        what = self._direct_run(), output_names, input_feed, run_options
        self._requests.put(CallbackRequest(callback, user_data, *what), None)

    def close(self, cancel: bool = False) -> None:
        """Ends the session's threads; it takes no more requests, nor calls of `run`.

        A session that is collected, or left as a context manager, is closed as well.

        Parameters
        ----------
        cancel : bool
            Whether requests that wait fail with SessionClosedError; else they are served first.
        """
        self._requests.stop(cancel)
        self.__dict__.update(dict.fromkeys(_RUNS, _refuse))
        self._requests.join()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _refuse(*_arguments: Any, **_named: Any) -> NoReturn:
    raise SessionClosedError(CLOSED)


def _require_count(name: str, value: Any, most: int | None = None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TargetError(f"{name} must be a whole number from 1 up, not {value!r}")
    if most is not None and value > most:
        raise TargetError(f"{name} must be at most {most}, not {value}")

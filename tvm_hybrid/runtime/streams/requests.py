"""Request: one run of a session that waits for a stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from microkernels.base.logs import logger

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

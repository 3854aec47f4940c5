"""Combines requests that arrive at about the same time into one run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from microkernels.base.errors import FeedError, QueueFullError, SessionClosedError, ShapeError

from ..runtime.feeds import named_feeds, to_array
from ..runtime.tensors import DynamicTensorInfo

if TYPE_CHECKING:
    from ..session.inference_session import InferenceSession

Feeds = Mapping[str, np.ndarray]
_Key = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(eq=False)
class _Waiting:
    """A request that waits to be combined with others."""

    feeds: Feeds
    rows: int
    done: asyncio.Future[list[np.ndarray]]


@dataclass(eq=False)
class _Batch:
    """Requests that will be served by one run."""

    requests: list[_Waiting] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        """Rows of all requests."""
        return sum(request.rows for request in self.requests)


class Batcher:
    """Runs requests on a session's streams, and combines requests that arrive in time.

    A session that compiles for each shape gets batches of 1, 2, 4, ... rows: the last row is
    repeated, and its additional results are dropped. A batch that fails is run again request by
    request, so that each gets its own answer. Only one event loop may use it.

    Parameters
    ----------
    session : InferenceSession
        The session. Its number of streams is the number of concurrent batches.
    max_batch : int
        Most rows of one run; 1 for no batches.
    max_delay : float
        Seconds that the first request of a batch waits for others.

    Attributes
    ----------
    requests, runs : int
        Number of answered requests, and of runs for them.

    Raises
    ------
    ShapeError
        With batches, if the first size of an input or output is not dynamic.
    """

    def __init__(
        self, session: InferenceSession, max_batch: int = 1, max_delay: float = 0.002
    ) -> None:
        self._session, self._max_batch, self._max_delay = session, max_batch, max_delay
        self._inputs = {
            each.name: DynamicTensorInfo(
                each.name, None if each.shape is None else tuple(each.shape), each.dtype
            )
            for each in session.get_inputs()
        }
        self._any_size = bool(session.programs)
        self._batches: dict[_Key, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = self.runs = 0
        for info in [*session.get_inputs(), *session.get_outputs()] if max_batch > 1 else ():
            if not info.shape or isinstance(info.shape[0], int):
                raise ShapeError(
                    f"{info.name!r} of the shape {info.shape} has no dynamic first size: requests "
                    "cannot be combined; leave max_batch at 1, or export the model with a dynamic "
                    "batch"
                )

    async def infer(self, feeds: Feeds) -> list[np.ndarray]:
        """Computes all outputs for these inputs.

        Raises
        ------
        FeedError
            If the inputs do not fit the model.
        QueueFullError
            If the session's queue is full.
        """
        for name, value in named_feeds(feeds, list(self._inputs)).items():
            to_array(value, self._inputs[name])  # a misfit would spoil the whole batch
        if self._max_batch == 1:
            results = await self._run(feeds)
            self.requests += 1
            return results
        rows = {value.shape[0] for value in feeds.values()}
        if len(rows) != 1:
            raise FeedError(f"inputs have different first sizes: {sorted(rows)}; a batch has one")
        request = _Waiting(feeds, rows.pop(), asyncio.get_running_loop().create_future())
        self._add(request)
        results = await request.done
        self.requests += 1
        return results

    def _add(self, request: _Waiting) -> None:
        """Adds a request to the batch of its shapes, and starts the batch if it is full."""
        key = tuple((name, request.feeds[name].shape[1:]) for name in sorted(request.feeds))
        batch = self._batches.get(key)
        if batch is not None and batch.rows + request.rows > self._max_batch:
            self._begin(key)
            batch = None
        if batch is None:
            batch = self._batches[key] = _Batch()
            loop = asyncio.get_running_loop()
            batch.timer = loop.call_later(self._max_delay, self._begin, key)
        batch.requests.append(request)
        if batch.rows >= self._max_batch:
            self._begin(key)

    def _begin(self, key: _Key) -> None:
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(batch.requests))
        self._tasks.add(task)  # keeps the task alive until it is done
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, requests: list[_Waiting]) -> None:
        """Runs requests as one, and returns to each its rows."""
        requests = [request for request in requests if not request.done.done()]
        if not requests:
            return
        try:
            results = await self._run(self._stacked([request.feeds for request in requests]))
        except Exception as error:
            if len(requests) == 1 or isinstance(error, (QueueFullError, SessionClosedError)):
                for request in requests:
                    if not request.done.done():
                        request.done.set_exception(error)
            else:
                for request in requests:
                    await self._serve([request])
            return
        start = 0
        for request in requests:
            end = start + request.rows
            if not request.done.done():  # its caller may have cancelled
                request.done.set_result([result[start:end] for result in results])
            start = end

    def _stacked(self, feeds: list[Feeds]) -> Feeds:
        """Stacks feeds; pads them to a power of 2 if the session compiles for each size."""
        rows = sum(next(iter(each.values())).shape[0] for each in feeds)
        more = 0 if self._any_size else (1 << (rows - 1).bit_length()) - rows if rows else 0
        return {
            name: np.concatenate([*(each[name] for each in feeds), *[feeds[-1][name][-1:]] * more])
            for name in feeds[0]
        }

    async def _run(self, feeds: Feeds) -> list[np.ndarray]:
        self.runs += 1
        return await asyncio.wrap_future(self._session.submit(None, feeds, timeout=0))

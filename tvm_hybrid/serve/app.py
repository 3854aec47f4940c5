"""The addresses of the inference protocol, version 2, for some sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request, Response

from microkernels.base.errors import (
    FeedError,
    ModelError,
    QueueFullError,
    SessionClosedError,
    TvmHybridError,
)

from ..runtime.feeds import check_output
from ..version_check import __version__
from .batching import Batcher
from .tensors import InferRequest, answer, array_of, metadata, read_request

if TYPE_CHECKING:
    import numpy as np

    from ..session.inference_session import InferenceSession

logger = logging.getLogger("tvm_hybrid")

LARGE_BODY = 1 << 16  # is read by another thread: the event loop goes on
_VERSION = "1"


class UnknownModelError(TvmHybridError):
    """A request names a model or version that is not served."""


class Server:
    """Some sessions behind the protocol; `application` is what an ASGI server runs.

    Parameters
    ----------
    sessions : mapping
        Sessions by the models' names. They are closed when the application ends.
    max_batch, max_delay
        As for `batching.Batcher`.
    """

    def __init__(
        self,
        sessions: Mapping[str, InferenceSession],
        max_batch: int = 1,
        max_delay: float = 0.002,
    ) -> None:
        self._sessions = dict(sessions)
        self._batchers = {
            name: Batcher(session, max_batch, max_delay) for name, session in sessions.items()
        }
        app = self.application = FastAPI(
            title="tvm_hybrid", version=__version__, lifespan=self._lifespan
        )
        model = "/v2/models/{name}"
        for path, function in (
            ("/v2", self.about),
            ("/v2/health/live", self.live),
            ("/v2/health/ready", self.live),
            (model, self.about_model),
            (f"{model}/ready", self.ready),
            (f"{model}/stats", self.statistics),
        ):
            app.add_api_route(path, function, methods=["GET"])
        app.add_api_route(f"{model}/infer", self.infer, methods=["POST"])
        app.add_exception_handler(TvmHybridError, _refused)

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        yield
        for session in self._sessions.values():
            await asyncio.to_thread(session.close)

    async def about(self) -> Response:
        """The server's name and version."""
        return _json({"name": "tvm_hybrid", "version": __version__, "extensions": ["statistics"]})

    async def live(self) -> Response:
        """An empty answer: sessions are made before the server listens."""
        return Response()

    async def ready(self, name: str) -> Response:
        """An empty answer, if there is such a model."""
        self._batcher(name)
        return Response()

    async def about_model(self, name: str) -> Response:
        """Inputs and outputs of a model."""
        self._batcher(name)
        session = self._sessions[name]
        return _json(
            {
                "name": name,
                "versions": [_VERSION],
                "platform": "tvm_hybrid",
                "inputs": metadata(session.get_inputs()),
                "outputs": metadata(session.get_outputs()),
            }
        )

    async def statistics(self, name: str) -> Response:
        """How many requests were answered, and by how many runs."""
        batcher = self._batcher(name)
        counts = {"inference_count": batcher.requests, "execution_count": batcher.runs}
        return _json({"model_stats": [{"name": name, "version": _VERSION, **counts}]})

    async def infer(self, name: str, request: Request) -> Response:
        """Runs a model."""
        batcher = self._batcher(name)
        body = await request.body()
        asked, feeds = await _aside(len(body), _read, body)
        known = [each.name for each in self._sessions[name].get_outputs()]
        wanted = known if asked.outputs is None else [each.name for each in asked.outputs]
        for output in wanted:
            check_output(output, known)
        results = dict(zip(known, await batcher.infer(feeds), strict=True))
        arrays = [results[output] for output in wanted]
        size = sum(array.nbytes for array in arrays)
        return await _aside(size, lambda: _json(answer(name, asked, wanted, arrays)))

    def _batcher(self, name: str) -> Batcher:
        if name not in self._batchers:
            known = ", ".join(map(repr, self._batchers))
            raise UnknownModelError(f"there is no model {name!r}; there are {known}")
        return self._batchers[name]


def _read(body: bytes) -> tuple[InferRequest, dict[str, np.ndarray]]:
    request = read_request(body)
    feeds = {tensor.name: array_of(tensor) for tensor in request.inputs}
    if len(feeds) != len(request.inputs):
        raise FeedError("an input is given twice")
    return request, feeds


async def _aside(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function; in another thread if it has much to do."""
    if size > LARGE_BODY:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _refused(_request: Request, error: Exception) -> Response:
    """An error of ours as the protocol has it."""
    if isinstance(error, UnknownModelError):
        status = 404
    elif isinstance(error, (FeedError, ModelError)):
        status = 400
    elif isinstance(error, (QueueFullError, SessionClosedError)):
        status = 503
    else:
        status = 500
        logger.error("a request failed: %s", error)
    return _json({"error": str(error)}, status)

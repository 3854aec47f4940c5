"""The routes of the inference protocol, version 2."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.core import CounterMetricFamily
from starlette.exceptions import HTTPException

from microkernels.base.errors import (
    FeedError,
    ModelError,
    QueueFullError,
    SessionClosedError,
    TvmHybridError,
)
from microkernels.base.logs import logger

from ..runtime.feeds import check_output
from ..version_check import __version__
from .batching import Batcher
from .tensors import VERSION, answer, metadata, read_request

if TYPE_CHECKING:
    from ..session.inference_session import InferenceSession

LARGE_BODY = 1 << 16  # larger bodies are parsed in another thread, so that the event loop goes on
TEXT_SIZE = "Inference-Header-Content-Length"
"""Header with the number of JSON bytes of a body; bytes of tensors follow."""


class UnknownModelError(TvmHybridError):
    """A request names an unknown model or version."""


class Server:
    """Serves sessions by the protocol; `application` is the ASGI application.

    Parameters
    ----------
    sessions : mapping
        Model name -> session. Sessions are closed when the application ends.
    max_batch, max_delay
        See `batching.Batcher`.
    """

    def __init__(
        self, sessions: Mapping[str, InferenceSession], max_batch: int = 1, max_delay: float = 0.002
    ) -> None:
        self._sessions = dict(sessions)
        self._batchers = {
            name: Batcher(session, max_batch, max_delay) for name, session in sessions.items()
        }
        self._metrics = prometheus_client.CollectorRegistry()
        self._metrics.register(self)
        self._seconds = prometheus_client.Histogram(
            "tvm_hybrid_request_seconds",
            "From a request to its answer",
            ["model", "status"],
            registry=self._metrics,
        )
        app = self.application = FastAPI(
            title="tvm_hybrid", version=__version__, lifespan=self._lifespan
        )
        for path, function in (
            ("/v2", self.about),
            ("/v2/health/live", self.live),
            ("/v2/health/ready", self.all_ready),
            ("/metrics", self.metrics),
        ):
            app.add_api_route(path, function, methods=["GET"])
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            app.add_api_route(model, self.about_model, methods=["GET"])
            app.add_api_route(f"{model}/ready", self.ready, methods=["GET"])
            app.add_api_route(f"{model}/stats", self.statistics, methods=["GET"])
            app.add_api_route(f"{model}/infer", self.infer, methods=["POST"])
        for kind in (TvmHybridError, HTTPException, RequestValidationError, Exception):
            app.add_exception_handler(kind, _refused)

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        yield
        for session in self._sessions.values():
            await asyncio.to_thread(session.close)

    async def about(self) -> Response:
        """The server's name and version."""
        extensions = ["binary_tensor_data", "statistics"]
        return _json({"name": "tvm_hybrid", "version": __version__, "extensions": extensions})

    async def live(self) -> Response:
        """Whether the server runs."""
        return _json({"live": True})

    async def all_ready(self) -> Response:
        """Whether all models are ready: sessions are made before the server listens."""
        return _json({"ready": True})

    async def ready(self, name: str, version: str = VERSION) -> Response:
        """Whether the model exists."""
        self._batcher(name, version)
        return _json({"name": name, "ready": True})

    async def about_model(self, name: str, version: str = VERSION) -> Response:
        """Inputs and outputs of a model."""
        self._batcher(name, version)
        session = self._sessions[name]
        return _json(
            {
                "name": name,
                "versions": [VERSION],
                "platform": "tvm_hybrid",
                "inputs": metadata(session.get_inputs()),
                "outputs": metadata(session.get_outputs()),
            }
        )

    async def statistics(self, name: str, version: str = VERSION) -> Response:
        """Number of answered requests, and of runs for them."""
        batcher = self._batcher(name, version)
        counts = {"inference_count": batcher.requests, "execution_count": batcher.runs}
        return _json({"model_stats": [{"name": name, "version": VERSION, **counts}]})

    async def metrics(self) -> Response:
        """Times of requests by model and status, and runs, in Prometheus' format."""
        text = prometheus_client.generate_latest(self._metrics)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yields the runs of each model, for the registry of metrics."""
        text = "Runs, each of which answers one request or several"
        found = CounterMetricFamily("tvm_hybrid_runs", text, labels=["model"])
        for name, batcher in self._batchers.items():
            found.add_metric([name], batcher.runs)
        yield found

    async def infer(self, name: str, request: Request, version: str = VERSION) -> Response:
        """Runs a model."""
        batcher = self._batcher(name, version)
        began, status = time.perf_counter(), 500
        try:
            response = await self._infer(name, batcher, request)
            status = response.status_code
            return response
        except TvmHybridError as error:
            status = _status(error)
            raise
        finally:
            self._seconds.labels(name, status).observe(time.perf_counter() - began)

    async def _infer(self, name: str, batcher: Batcher, request: Request) -> Response:
        body = await request.body()
        text = request.headers.get(TEXT_SIZE, f"{len(body)}")
        if not text.isdecimal() or int(text) > len(body):
            raise FeedError(f"{TEXT_SIZE} is {text!r}; the request has {len(body)} bytes")
        asked, feeds = await _aside(len(body), read_request, body, int(text))
        known = [each.name for each in self._sessions[name].get_outputs()]
        wanted = known if asked.outputs is None else [each.name for each in asked.outputs]
        for output in wanted:
            check_output(output, known)
        found = dict(zip(known, await batcher.infer(feeds), strict=True))
        results = {output: found[output] for output in wanted}
        size = sum(array.nbytes for array in results.values())
        json, behind = await _aside(size, answer, name, asked, results)
        if not behind:
            return Response(json, media_type="application/json")
        headers = {TEXT_SIZE: f"{len(json)}"}
        return Response(
            b"".join([json, *behind]), headers=headers, media_type="application/octet-stream"
        )

    def _batcher(self, name: str, version: str) -> Batcher:
        if name not in self._batchers:
            known = ", ".join(map(repr, self._batchers))
            raise UnknownModelError(f"there is no model {name!r}; there are {known}")
        if version != VERSION:
            raise UnknownModelError(f"{name!r} has no version {version!r}, only {VERSION!r}")
        return self._batchers[name]


async def _aside(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function; in another thread if it has much data."""
    if size > LARGE_BODY:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _status(error: Exception) -> int:
    """Returns the HTTP status of an error."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, UnknownModelError):
        return 404
    if isinstance(error, (FeedError, ModelError, RequestValidationError)):
        return 400
    return 503 if isinstance(error, (QueueFullError, SessionClosedError)) else 500


async def _refused(_request: Request, error: Exception) -> Response:
    """Answers a request with an error in the protocol's form."""
    status = _status(error)
    if status == 500:
        logger.error("a request failed: %s", error)
    text = error.detail if isinstance(error, HTTPException) else str(error)
    return _json({"error": text}, status)

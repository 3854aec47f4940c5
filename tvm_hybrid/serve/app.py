"""The addresses of the inference protocol, version 2, for some sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response

from microkernels.base.errors import (
    FeedError,
    ModelError,
    QueueFullError,
    SessionClosedError,
    ShapeError,
    TvmHybridError,
)
from microkernels.base.logs import logger

from ..runtime.feeds import check_output, named_feeds, to_array
from ..runtime.tensors import OpenTensorInfo, numpy_dtype
from ..session.onnxruntime_api.model_surface import NodeArg
from ..version_check import __version__

if TYPE_CHECKING:
    from ..session.inference_session import InferenceSession


Feeds = Mapping[str, np.ndarray]
_Key = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(eq=False)
class _Waiting:
    """A request that waits for others."""

    feeds: Feeds
    rows: int
    done: asyncio.Future[list[np.ndarray]]


@dataclass(eq=False)
class _Batch:
    """Requests that will be one run."""

    requests: list[_Waiting] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        """Rows of all requests."""
        return sum(request.rows for request in self.requests)


class Batcher:
    """Runs requests on a session's streams, several in one run if there are several in time.

    A session that compiles for each shape gets batches of 1, 2, 4, ... rows: the last row is
    repeated, and what is computed of it is dropped. A batch that fails is run again, request by
    request, so that each has its own answer. One event loop uses it.

    Parameters
    ----------
    session : InferenceSession
        What is run. Its streams say how many batches run at once.
    max_batch : int
        The most rows of one run; 1 for no batches.
    max_delay : float
        Seconds that the first request of a batch waits for others.

    Attributes
    ----------
    requests, runs : int
        How many requests were answered, and by how many runs.

    Raises
    ------
    ShapeError
        If there are to be batches, and the first size of an input or output is not open.
    """

    def __init__(
        self, session: InferenceSession, max_batch: int = 1, max_delay: float = 0.002
    ) -> None:
        self._session, self._max_batch, self._max_delay = session, max_batch, max_delay
        self._inputs = {
            each.name: OpenTensorInfo(
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
                    f"{info.name!r} of the shape {info.shape} has no open first size: requests "
                    "cannot be put together; leave max_batch at 1, or export the model with an "
                    "open batch"
                )

    async def infer(self, feeds: Feeds) -> list[np.ndarray]:
        """All outputs for these inputs.

        Raises
        ------
        FeedError
            If the inputs do not fit the model.
        QueueFullError
            If as many runs wait as the session's queue has room for.
        """
        for name, value in named_feeds(feeds, list(self._inputs)).items():
            to_array(value, self._inputs[name])  # what does not fit would spoil a batch
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
        """Puts a request into the batch of its kind, and begins the batch if it is full."""
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
        self._tasks.add(task)  # else it might be collected before it is done
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, requests: list[_Waiting]) -> None:
        """Runs requests as one, and hands out the rows of each."""
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
            if not request.done.done():  # its caller may have gone
                request.done.set_result([result[start:end] for result in results])
            start = end

    def _stacked(self, feeds: list[Feeds]) -> Feeds:
        """One below the other; more rows if the session should not compile for just these."""
        rows = sum(next(iter(each.values())).shape[0] for each in feeds)
        more = 0 if self._any_size else (1 << (rows - 1).bit_length()) - rows if rows else 0
        return {
            name: np.concatenate([*(each[name] for each in feeds), *[feeds[-1][name][-1:]] * more])
            for name in feeds[0]
        }

    async def _run(self, feeds: Feeds) -> list[np.ndarray]:
        self.runs += 1
        return await asyncio.wrap_future(self._session.submit(None, feeds, timeout=0))


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
        self, sessions: Mapping[str, InferenceSession], max_batch: int = 1, max_delay: float = 0.002
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
    try:
        request = msgspec.json.decode(body, type=InferRequest)
    except msgspec.DecodeError as error:
        raise FeedError(f"the request is not one of the inference protocol: {error}") from error
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


# Tensors of the inference protocol, version 2, as JSON, and NumPy arrays.
#
#     {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}
#
# `data` is flat in row-major order, or nested as the shape is. JSON has no NaN and no infinity.


_TYPES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


class InputTensor(msgspec.Struct):
    """A tensor of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class WantedOutput(msgspec.Struct):
    """An output that a request asks for."""

    name: str


class InferRequest(msgspec.Struct):
    """What is sent to be inferred."""

    inputs: list[InputTensor]
    id: str = ""
    outputs: list[WantedOutput] | None = None


def array_of(tensor: InputTensor) -> np.ndarray:
    """A tensor as an array.

    Raises
    ------
    FeedError
        If type, shape and data do not go together.
    """
    if tensor.datatype not in _DTYPES:
        raise FeedError(
            f"input {tensor.name!r}: datatype {tensor.datatype!r} is not one of "
            f"{', '.join(_DTYPES)}"
        )
    dtype = numpy_dtype(_DTYPES[tensor.datatype])
    try:
        found = np.asarray(tensor.data)
        if found.size and not _holds(dtype, found):
            raise ValueError(f"{found.dtype} values do not fit into {tensor.datatype}")
        return found.astype(dtype).reshape(tensor.shape)
    except (ValueError, OverflowError) as error:
        raise FeedError(
            f"input {tensor.name!r}: data do not make {tensor.datatype} of shape {tensor.shape}: "
            f"{error}"
        ) from error


def _holds(dtype: np.dtype[Any], values: np.ndarray) -> bool:
    """Whether a type holds numbers of JSON: no fractions among integers, none out of range."""
    if "float" in dtype.name:
        return values.dtype.kind in "fiu"
    if dtype.kind == "b" or values.dtype.kind not in "iu":
        return values.dtype.kind == "b" == dtype.kind
    limits = np.iinfo(dtype)
    return int(values.min()) >= limits.min and int(values.max()) <= limits.max


def answer(
    model: str, request: InferRequest, names: Sequence[str], arrays: Sequence[np.ndarray]
) -> dict[str, Any]:
    """What is sent back; numbers that JSON does not have become null."""
    outputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _TYPES.get(array.dtype.name, array.dtype.name),
            "data": _plain(array).ravel().tolist(),
        }
        for name, array in zip(names, arrays, strict=True)
    ]
    found = {"model_name": model, "model_version": "1", "outputs": outputs}
    return {**found, "id": request.id} if request.id else found


def _plain(array: np.ndarray) -> np.ndarray:
    """In a type that turns into Python's numbers."""
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def metadata(args: Sequence[NodeArg]) -> list[Mapping[str, Any]]:
    """Names, types and shapes of inputs or outputs; an open size is -1."""
    return [
        {
            "name": arg.name,
            "datatype": _TYPES.get(arg.dtype or "", arg.dtype),
            "shape": [size if isinstance(size, int) else -1 for size in arg.shape or [-1]],
        }
        for arg in args
    ]

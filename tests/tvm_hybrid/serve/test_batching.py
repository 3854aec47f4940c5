"""Batches of requests, on stand-in sessions."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from tvm_hybrid.errors import FeedError, QueueFullError, ShapeError
from tvm_hybrid.runtime.tensors import TensorInfo
from tvm_hybrid.serve.batching import Batcher
from tvm_hybrid.serve.tensors import InferRequest, InputTensor, Parameters, answer, array_of
from tvm_hybrid.session.onnxruntime_api.model_surface import NodeArg


class Doubling:
    """A session that doubles its input and refuses batches that contain 13."""

    def __init__(self, programs: int = 1, first: Any = "n", full: bool = False) -> None:
        self.programs, self._first, self._full = [None] * programs, first, full
        self.rows: list[int] = []

    def get_inputs(self) -> list[Any]:
        return [NodeArg(TensorInfo("x", (self._first, 2), "float32"))]

    get_outputs = get_inputs

    def submit(self, names: None, feeds: Any, timeout: float) -> Future[Any]:
        assert names is None and timeout == 0
        if self._full:
            raise QueueFullError("full")
        self.rows.append(len(feeds["x"]))
        found: Future[Any] = Future()
        if (feeds["x"] == 13).any():
            found.set_exception(FeedError("no 13"))
        else:
            found.set_result([2 * feeds["x"]])
        return found


def inferred(session: Any, *numbers: float, max_batch: int = 8, rows: int = 1) -> list[Any]:
    """Results or errors of concurrent requests, each of `rows` rows filled with its number."""

    async def all_of_them() -> list[Any]:
        batcher = Batcher(session, max_batch, 0.01)
        feeds = [{"x": np.full((rows, 2), number, np.float32)} for number in numbers]
        found = await asyncio.gather(*map(batcher.infer, feeds), return_exceptions=True)
        assert batcher.runs == len(session.rows) or session._full
        return [each if isinstance(each, Exception) else each[0] for each in found]

    return asyncio.run(all_of_them())


def test_a_batch_is_one_run() -> None:
    session = Doubling()
    found = inferred(session, 1, 2, 3)
    assert [each.tolist() for each in found] == [[[2, 2]], [[4, 4]], [[6, 6]]]
    assert session.rows == [3]


def test_batches_are_no_larger_than_they_may_be() -> None:
    session = Doubling()
    assert len(inferred(session, 1, 2, 3, 4, 5, max_batch=5, rows=2)) == 5
    assert session.rows == [4, 4, 2]
    session = Doubling()
    inferred(session, 1, 2, max_batch=1, rows=3)
    assert session.rows == [3, 3]
    session = Doubling()
    inferred(session, 1, max_batch=2, rows=3)  # exceeds the batch size
    assert session.rows == [3]


def test_sessions_that_compile_for_each_shape_see_few_of_them() -> None:
    session = Doubling(programs=0)
    found = inferred(session, 1, 2, 3, 4, 5)
    assert session.rows == [8] and [each.tolist() for each in found][4] == [[10, 10]]


def test_one_bad_request_does_not_spoil_the_others() -> None:
    session = Doubling()
    one, bad, three = inferred(session, 1, 13, 3)
    assert one.tolist() == [[2, 2]] and three.tolist() == [[6, 6]]
    assert isinstance(bad, FeedError) and session.rows == [3, 1, 1, 1]


def test_a_full_queue_is_told_to_all() -> None:
    assert all(isinstance(each, QueueFullError) for each in inferred(Doubling(full=True), 1, 2))


def test_only_dynamic_batches_are_put_together() -> None:
    with pytest.raises(ShapeError, match=r"'x' of the shape \[1, 2\] has no dynamic first size"):
        Batcher(Doubling(first=1), 2)  # type: ignore[arg-type]
    assert [each.tolist() for each in inferred(Doubling(first=1), 4, max_batch=1)] == [[[8, 8]]]


@pytest.mark.parametrize(
    ("datatype", "data", "dtype"),
    [
        ("BOOL", [True, False], np.bool_),
        ("INT64", [-(2**62), 5], np.int64),
        ("UINT8", [255, 0], np.uint8),
        ("FP16", [1, 0.5], np.float16),
        ("BF16", [1.5, 2], ml_dtypes.bfloat16),
        ("FP64", [], np.float64),
    ],
)
def test_tensors_go_there_and_back(datatype: str, data: list[Any], dtype: Any) -> None:
    array = array_of(InputTensor("x", [1, len(data)], datatype, [data]))
    assert array.dtype == dtype and array.shape == (1, len(data))
    text, behind = answer("m", InferRequest([]), {"x": array})
    wanted = {"name": "x", "shape": [1, len(data)], "datatype": datatype}
    assert msgspec.json.decode(text)["outputs"] == [{**wanted, "data": data}] and behind == []
    request = InferRequest([], parameters=Parameters(binary_data_output=True))
    text, (found,) = answer("m", request, {"x": array})
    size = {"binary_data_size": len(found)}
    assert msgspec.json.decode(text)["outputs"] == [{**wanted, "parameters": size}]
    again = array_of(InputTensor("x", [1, len(data)], datatype), found)
    assert again.dtype == dtype and again.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("UINT8", [256]), ("INT32", [1.5]), ("BOOL", [1]), ("INT8", [True]), ("INT8", [None])],
)
def test_what_a_type_does_not_hold_is_refused(datatype: str, data: list[Any]) -> None:
    with pytest.raises(FeedError, match=f"do not fit into {datatype}"):
        array_of(InputTensor("x", [1], datatype, data))

"""bfloat16 inputs and outputs of sessions and executables."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

import tvm_hybrid
from tvm_hybrid.errors import FeedError
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.runtime.feeds import ZERO_COPY_BYTES, aligned_empty
from tvm_hybrid.runtime.tensors import TensorInfo

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPE = (64, 80)  # large enough to be passed without a copy
X = np.random.default_rng(0).standard_normal(SHAPE).astype(BF16)


def doubling(shape: tuple[int, ...]) -> IRModule:
    """x: bfloat16 -> 2 x, x transposed (if a matrix), x itself."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "bfloat16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            twice = builder.emit(relax.op.add(x, x))
            transposed = builder.emit(relax.op.permute_dims(x))
            result = builder.emit_output(relax.Tuple([twice, transposed, x]))
        builder.emit_func_output(result)
    return builder.get()


@functools.cache
def executable(shape: tuple[int, ...] = SHAPE) -> Executable:
    return tvm_hybrid.compile(doubling(shape), num_threads=1)


def check(x: np.ndarray, results: list[np.ndarray]) -> None:
    """Checks that results are exactly doubled and that none shares the caller's memory."""
    for result, wanted in zip(results, [(x + x), x.T, x], strict=True):
        assert result.dtype == BF16 and result.flags.writeable
        assert not np.shares_memory(result, x)
        np.testing.assert_array_equal(result, wanted)


def misaligned() -> np.ndarray:
    raw = np.zeros(X.nbytes + 2, np.uint8)
    array = raw[2:].view(BF16).reshape(SHAPE)
    array[...] = X
    return array


def aligned() -> np.ndarray:
    array = aligned_empty(TensorInfo("x", SHAPE, "bfloat16"))
    array[...] = X
    return array


@pytest.mark.parametrize(
    "x",
    [aligned(), misaligned(), np.asfortranarray(X), X[::-1][::-1]],
    ids=["aligned", "misaligned", "columns first", "reversed twice"],
)
def test_arrays_wherever_they_lie(x: np.ndarray) -> None:
    assert x.nbytes >= ZERO_COPY_BYTES
    session = tvm_hybrid.InferenceSession(executable())
    kept = x.copy()
    first = session.run(None, {"x": x})
    check(x, first)
    session.run(None, {"x": np.zeros(SHAPE, BF16)})
    check(kept, first)


def test_small_arrays_lists_and_read_only_ones() -> None:
    session = tvm_hybrid.InferenceSession(executable((2, 3)))
    x = np.array([[1.5, -2, 0.25], [3, 4, np.inf]], BF16)
    check(x, session.run(None, {"x": x}))
    check(x, session.run(None, {"x": x.astype(np.float32).tolist()}))
    frozen = x.copy()
    frozen.flags.writeable = False
    check(x, session.run(None, {"x": frozen}))
    check(x, session.run(None, {"x": tvm.runtime.tensor(x)}))
    (transposed,) = session.run(["output_1"], {"x": x})
    np.testing.assert_array_equal(transposed, x.T)


def test_one_input_and_one_output() -> None:
    """Sessions with other types take a short way here."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "bfloat16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.negative(x))
        builder.emit_func_output(result)
    session = tvm_hybrid.InferenceSession(builder.get(), num_threads=1)
    for _ in range(3):
        (result,) = session.run(None, {"x": X})
        np.testing.assert_array_equal(result, -X)


def test_inputs_and_outputs_are_described() -> None:
    session = tvm_hybrid.InferenceSession(executable())
    (info,) = session.get_inputs()
    assert (info.dtype, info.type) == ("bfloat16", "tensor(bfloat16)")
    assert {output.dtype for output in session.get_outputs()} == {"bfloat16"}


def test_executables_take_arrays_and_tensors() -> None:
    for x in (X, misaligned(), tvm.runtime.tensor(X)):
        results = executable().run(x)
        assert [str(result.dtype) for result in results] == ["bfloat16"] * 3
        np.testing.assert_array_equal(results[0].numpy(), X + X)
    assert executable().profile({"x": X}, repeat=1) is not None
    assert executable().profile(repeat=1) is not None


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (X.view(np.uint16), r"array\.view\(ml_dtypes\.bfloat16\)"),
        (X.astype(np.float32), r"array\.astype\(ml_dtypes\.bfloat16\) rounds"),
        (X.astype(np.float16), "float16"),
        (X[:1], r"\[1, 80\]"),
    ],
    ids=["bits", "float32", "float16", "shape"],
)
def test_other_types_are_refused(value: Any, hint: str) -> None:
    session = tvm_hybrid.InferenceSession(executable())
    for run in (lambda: session.run(None, {"x": value}), lambda: executable().run(value)):
        with pytest.raises(FeedError, match=hint):
            run()
    check(X, session.run(None, {"x": X}))


def test_exported_libraries_take_them_too(tmp_path: Path) -> None:
    path = executable().export(tmp_path / "m.so")
    check(X, tvm_hybrid.InferenceSession(path).run(None, {"x": X}))

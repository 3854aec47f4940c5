"""Which kernels take bfloat16 as uint16, and that sessions call them in that way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te

import tvm_hybrid
from relay_passes.ir.functions import TAKES_BITS
from relay_passes.lower.kernel_pipelines import pipeline_of_trusting
from relay_passes.lower_module import lower_shared
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module
from tvm_hybrid.errors import FeedError
from tvm_hybrid.runtime.feeds import aligned_empty
from tvm_hybrid.runtime.tensors import TensorInfo
from tvm_hybrid.targets.resolve import host_target

BF16 = np.dtype(ml_dtypes.bfloat16)
op = relax.op


def weight(dtype: str) -> relax.Expr:
    values = np.random.default_rng(0).standard_normal((16, 16))
    return relax.const(values.astype(BF16 if dtype == "bfloat16" else dtype))


def product(x: relax.Expr) -> relax.Expr:
    return op.matmul(x, weight(str(x.ty.dtype)))


def two(x: relax.Expr) -> relax.Expr:
    return op.nn.softmax(product(x))


@pytest.mark.parametrize(
    ("body", "dtype", "count"),
    [(product, "bfloat16", 1), (two, "bfloat16", 0), (product, "float32", 0)],
    ids=["one kernel", "two kernels", "float32"],
)
def test_the_only_kernel_of_a_model_in_bfloat16(
    body: Callable[[relax.Expr], relax.Expr], dtype: str, count: int
) -> None:
    mod = lower_shared(module(body, ((3, 16), dtype)), PipelineOptions(TARGET), [])
    assert sum(TAKES_BITS in (f.attrs or {}) for f in mod.functions.values()) == count


def test_a_session_calls_it_with_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = tvm_hybrid.compile(module(product, ((3, 16), "bfloat16")), num_threads=1)
    found = executable.bare_kernel()
    assert found is not None
    kernel, constants = found
    dtypes: list[Any] = []

    def noting(*arguments: Any) -> None:
        dtypes.append((arguments[0].dtype, arguments[-1].dtype))
        kernel(*arguments)

    monkeypatch.setattr(executable, "bare_kernel", lambda: (noting, constants))
    session = tvm_hybrid.InferenceSession(executable)
    (name,) = (info.name for info in session.get_inputs())
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(BF16)
    (first,) = session.run(None, {name: x})  # by the virtual machine; later runs are direct
    (second,) = session.run(None, {name: x})
    assert dtypes == [(np.uint16, np.uint16)]
    assert first.dtype == second.dtype == BF16
    np.testing.assert_array_equal(first, second)
    with pytest.raises(FeedError, match="expected"):
        session.run(None, {name: x.view(np.uint16)})
    for wrong in (x.view(np.int16), x.view(np.float16), np.zeros((3, 16), np.uint8)):
        with pytest.raises(TypeError, match="dtype"):
            kernel(wrong, *constants, np.empty((3, 16), np.uint16))


def test_main_takes_no_bits() -> None:
    executable = tvm_hybrid.compile(module(product, ((3, 16), "bfloat16")), num_threads=1)
    bits = tvm.runtime.tensor(np.zeros((3, 16), np.uint16))
    with pytest.raises(FeedError, match=r"expected x0: bfloat16\[3, 16\], got x0: uint16"):
        executable.run(bits)


@pytest.mark.parametrize(
    ("taken", "given"),
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("int16", "bfloat16"),
        ("uint16", "bfloat16"),
        ("bfloat16", "uint16"),
    ],
)
def test_one_side_may_be_of_another_type(taken: str, given: str) -> None:
    body = module(lambda x: op.astype(x, given), ((3, 16), taken))
    session = tvm_hybrid.InferenceSession(tvm_hybrid.compile(body, num_threads=1))
    numbers = np.arange(48).reshape(3, 16)
    for _ in range(3):  # first by the virtual machine, later directly
        (found,) = session.run(None, {"x0": numbers.astype(taken)})
        assert found.dtype == np.dtype(given)
        np.testing.assert_array_equal(found.astype(int), numbers)
        for wrong in {"int16", "uint16", "float16", "bfloat16"} - {taken}:
            with pytest.raises(FeedError, match=rf"expected x0: {taken}\[3, 16\], got x0: {wrong}"):
                session.run(None, {"x0": numbers.astype(wrong)})


def test_integers_of_the_same_size_are_no_bits() -> None:
    """A kernel from uint16 to bfloat16: only its second parameter takes both types."""
    x = te.placeholder((16,), "uint16", name="x")
    y = te.compute((16,), lambda i: x[i].astype("bfloat16"), name="y")
    kernel = te.create_prim_func([x, y]).with_attr({"global_symbol": "cast", TAKES_BITS: True})
    mod = tvm.IRModule({"cast": kernel})
    cast = tvm.compile(mod, host_target(), tir_pipeline=pipeline_of_trusting("default"))["cast"]
    # TVM's own kernels want aligned tensors.
    numbers, bits = (aligned_empty(TensorInfo(name, (16,), "uint16")) for name in "xy")
    numbers[:] = np.arange(16)
    cast(numbers, bits)
    np.testing.assert_array_equal(bits.view(BF16).astype(int), numbers)
    for wrong in (tvm.runtime.empty((16,), "bfloat16"), numbers.view(np.int16)):
        with pytest.raises(TypeError, match="dtype"):
            cast(wrong, bits)

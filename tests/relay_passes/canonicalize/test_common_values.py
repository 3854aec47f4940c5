"""Values that are computed twice are computed once, also if they read equal copies of a weight."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.functions import LARGE_BYTES, common_values
from relay_passes.ir.constants import constants_of
from relay_passes.ir.tidy import tidy

op = relax.op
N = 256
X = ((4, N), "float32")
LARGE = np.random.default_rng(0).standard_normal((N, LARGE_BYTES // N // 4)).astype(np.float32)
OTHER = LARGE.copy()
OTHER[-1, -1] += 1
BITS = LARGE.copy()
BITS[0, 0], BITS[0, 1] = 0.0, np.nan


def products(*weights: np.ndarray) -> IRModule:
    """The sum of exp(x @ w) over some weights, each computed separately."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(*X))
    with builder.function("main", [x]):
        with builder.dataflow():
            total = x
            for weight in weights:
                product = builder.emit(op.matmul(x, relax.const(weight)))
                term = builder.emit(op.sum(builder.emit(op.exp(product)), [1], keepdims=True))
                total = builder.emit(op.add(total, term))
            result = builder.emit_output(op.negative(total))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("columns", [3, LARGE.shape[1]])
@pytest.mark.parametrize(
    "weights", [(LARGE, LARGE), (LARGE, OTHER), (LARGE, OTHER, LARGE.copy()), (BITS, BITS.copy())]
)
def test_it_is_what_tvm_makes_of_it(weights: tuple[np.ndarray, ...], columns: int) -> None:
    mod = products(*(np.ascontiguousarray(weight[:, :columns]) for weight in weights))
    wanted = tidy()(relax.transform.EliminateCommonSubexpr()(mod))
    found = common_values()(mod)
    assert_structural_equal(found, wanted)
    different = len({weight[:, :columns].tobytes() for weight in weights})
    assert str(found).count("R.matmul") == different


def test_equal_weights_are_there_once_and_the_module_stays() -> None:
    mod = products(LARGE, LARGE.copy(), OTHER)
    found = common_values()(mod)
    large = [each for each in constants_of(found) if each.value.ndim == 2]
    assert len(large) == 2
    assert len(found["main"].params) == len(mod["main"].params) == 1
    assert_structural_equal(mod, products(LARGE, LARGE.copy(), OTHER))


def test_an_output_of_an_equal_weight_stays_what_it_is() -> None:
    """Two outputs whose equal weights are merged stay two outputs."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(*X))
    with builder.function("main", [x]):
        with builder.dataflow():
            inputs = [x, builder.emit(op.exp(x))]
            products = [op.matmul(each, relax.const(LARGE.copy())) for each in inputs]
            outputs = [builder.emit_output(each) for each in products]
        builder.emit_func_output(relax.Tuple(outputs))
    found = common_values()(builder.get())
    assert str(found).count("R.matmul") == 2
    assert len([each for each in constants_of(found) if each.value.ndim == 2]) == 1

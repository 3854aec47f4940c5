"""Functions of elements in every float type: accurate, with right special values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm_ffi
from scipy import special
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax import op

import tvm_hybrid
from tir_schedules.generic.expressions import call_name
from tir_schedules.generic.vector_math import lower_math
from tools.vector_math import error as vector_math_error

Meaning = Callable[..., np.ndarray]
UNARY: dict[str, Meaning] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": special.erf,
    "exp": np.exp,
    "exp10": lambda x: 10.0**x,
    "exp2": np.exp2,
    "floor": np.floor,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "round": np.rint,
    "sigmoid": special.expit,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
BINARY: dict[str, Meaning] = {
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "pow": np.power,
}
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.5, -2.5, 88.9, -89, 7, 1e-5, 1e-40]
X = np.concatenate(
    [
        np.array(SPECIAL, np.float32),
        np.linspace(-10, 10, 501, dtype=np.float32),
        np.geomspace(1e-30, 1e30, 203, dtype=np.float32),
    ]
)
# In ulp: the C library's functions are within 2, those of `vector_math` state their errors, and
# 1 / (1 + exp(-x)) rounds once more. float16 rounds a float32 result once more.
ULP = {"float16": 1.0, "float32": 2.0, "float64": 2.0}
OWN = {
    (name, "float32"): function.bounds[0].fused
    for name, function in vector_math_error.FUNCTIONS.items()
    if name in UNARY
}
FLUSHED = {"exp", "sigmoid"}  # below 2^-126, in float32


def all_at_once(functions: dict[str, Meaning], dtype: str, arity: int) -> list[np.ndarray]:
    """The results of a module that has an output for every function."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(X.shape, dtype)) for i in range(arity)]
    with builder.function("main", inputs):
        with builder.dataflow():
            results = [
                builder.emit_output(builder.call_te(elementwise(name), *inputs))
                for name in functions
            ]
        builder.emit_func_output(relax.Tuple(results))
    executable = tvm_hybrid.compile(builder.get(), num_threads=1, records=[])
    return [result.numpy() for result in executable.run(*arguments(dtype, arity))]


def elementwise(name: str) -> Callable[..., te.Tensor]:
    def compute(*tensors: te.Tensor) -> te.Tensor:
        function = getattr(tirx, name)
        return te.compute(X.shape, lambda i: function(*(tensor(i) for tensor in tensors)))

    return compute


def arguments(dtype: str, arity: int) -> list[np.ndarray]:
    with np.errstate(over="ignore"):
        return [X.astype(dtype), np.roll(X, 7).astype(dtype)][:arity]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize(("functions", "arity"), [(UNARY, 1), (BINARY, 2)])
def test_error(functions: dict[str, Meaning], arity: int, dtype: str) -> None:
    wide = [x.astype(np.float64) for x in arguments(dtype, arity)]
    for (name, meaning), result in zip(
        functions.items(), all_at_once(functions, dtype, arity), strict=True
    ):
        with np.errstate(all="ignore"):
            exact = meaning(*wide)
            expected = exact.astype(dtype)
            error = np.abs(result.astype(np.float64) - exact) / np.spacing(np.abs(expected))
        same = (result == expected) | (np.isnan(result) & np.isnan(expected))
        if dtype == "float32" and name in FLUSHED:
            same |= (np.abs(exact) < 2.0**-126) & (result == 0)
        # Half an ulp is NumPy's own rounding to `expected`, where it is infinite or zero.
        allowed = OWN.get((name, dtype), ULP[dtype])
        wrong = ~same & ~(error <= allowed)
        assert not wrong.any(), (name, [x[wrong][:3] for x in wide], result[wrong][:3])
        zero = (expected == 0) & (exact == 0)
        np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]), name)


def test_the_functions_of_a_vector_stay() -> None:
    call = tirx.exp10(tirx.Var("x", "float32x8"))
    calls: list[Call] = []
    tvm_ffi.structural_walk(lower_math(call), (Call, calls.append))
    assert [call_name(each) for each in calls] == ["exp10"]


def test_booleans() -> None:
    x = relax.Var("x", relax.TensorType((2, 3), "bool"))
    y = relax.Var("y", relax.TensorType((3,), "bool"))
    operators = {
        "equal": np.equal,
        "not_equal": np.not_equal,
        "less": np.less,
        "greater_equal": np.greater_equal,
        "logical_xor": np.logical_xor,
        "maximum": np.maximum,
        "minimum": np.minimum,
    }
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            results = [
                builder.emit_output(builder.normalize(getattr(op, name)(x, y)))
                for name in operators
            ]
        builder.emit_func_output(relax.Tuple(results))
    given = [np.array([[0, 1, 0], [1, 1, 0]], bool), np.array([0, 1, 1], bool)]
    found = tvm_hybrid.compile(builder.get(), num_threads=1, records=[]).run(*given)
    for meaning, result in zip(operators.values(), found, strict=True):
        np.testing.assert_array_equal(result.numpy(), meaning(*given))

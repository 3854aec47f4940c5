"""The transcendental functions: stated errors, special values, and that code stays vectorised."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import s_tir, te, tirx

from microkernels.isa import host_features
from microkernels.vector import trigonometry, vector_math
from microkernels.vector.expressions import Expr, let_scope, with_lets
from tools.vector_math import error as vector_math_error
from tools.vector_math import fit as vector_math_fit
from tools.vector_math.error import FUNCTIONS, LEVELS, bit_patterns, elementwise, measure

_NEEDED = {"skylake-avx512": {"avx512f", "avx512dq"}, "haswell": {"avx2", "fma"}, "x86-64": set()}
HOST_LEVELS = [mcpu for mcpu in LEVELS if _NEEDED[mcpu] <= host_features()]
HOST_LANES = sorted({1, *(LEVELS[mcpu] for mcpu in HOST_LEVELS)})

# Exact answers that are a matter of definition: input -> output, signs of zeros included.
SPECIAL = {
    "exp": "0 -> 1, -0.0 -> 1, 1e-45 -> 1, inf -> inf, -inf -> 0, 88.722839 -> inf, -1000 -> 0",
    "log": "1 -> 0, 0 -> -inf, -0.0 -> -inf, -1 -> nan, -1e-45 -> nan, inf -> inf, -inf -> nan",
    "erf": "0 -> 0, -0.0 -> -0.0, 4.15 -> 1, -4.15 -> -1, inf -> 1, -inf -> -1, 3e38 -> 1",
    "tanh": "0 -> 0, -0.0 -> -0.0, 9.5 -> 1, -9.5 -> -1, inf -> 1, -inf -> -1, 1e-45 -> 1e-45",
    "sigmoid": "0 -> 0.5, 17.5 -> 1, inf -> 1, -inf -> 0, 1000 -> 1, -1000 -> 0, -3e38 -> 0",
    "silu": "0 -> 0, -0.0 -> -0.0, inf -> inf, -inf -> nan, 3e38 -> 3e38, -3e38 -> -0.0",
    "gelu_erf": "0 -> 0, -0.0 -> -0.0, inf -> inf, -inf -> nan, 3e38 -> 3e38, -3e38 -> 0, 6 -> 6",
    "gelu_tanh": "0 -> 0, -0.0 -> -0.0, inf -> inf, -inf -> nan, 3e38 -> 3e38, -3e38 -> -0.0",
    "hardswish": "0 -> 0, inf -> inf, -inf -> nan, 3 -> 3, 3.3 -> 3.3, 3e38 -> 3e38, -3 -> -0.0",
    "softplus": "inf -> inf, -inf -> 0, 3e38 -> 3e38, -3e38 -> 0, 100 -> 100, -100 -> 0",
    "sin": "0 -> 0, -0.0 -> -0.0, 1e-45 -> 1e-45, -1e-40 -> -1e-40, inf -> nan, -inf -> nan",
    "cos": "0 -> 1, -0.0 -> 1, 1e-45 -> 1, inf -> nan, -inf -> nan",
    "tan": "0 -> 0, -0.0 -> -0.0, 1e-45 -> 1e-45, -1e-40 -> -1e-40, inf -> nan, -inf -> nan",
    "asin": "0 -> 0, -0.0 -> -0.0, 1e-45 -> 1e-45, 1 -> 1.5707964, -1 -> -1.5707964, "
    "1.0000001 -> nan, inf -> nan, -inf -> nan",
    "acos": "1 -> 0, -1 -> 3.1415927, 0 -> 1.5707964, -1.0000001 -> nan, inf -> nan, -inf -> nan",
    "atan": "0 -> 0, -0.0 -> -0.0, 1e-45 -> 1e-45, inf -> 1.5707964, -inf -> -1.5707964, "
    "3e38 -> 1.5707964",
    "sinh": "0 -> 0, -0.0 -> -0.0, -1e-45 -> -1e-45, inf -> inf, -inf -> -inf, 89.42 -> inf, "
    "-3e38 -> -inf",
    "cosh": "0 -> 1, -0.0 -> 1, inf -> inf, -inf -> inf, 89.42 -> inf, -3e38 -> inf",
    "asinh": "0 -> 0, -0.0 -> -0.0, -1e-45 -> -1e-45, inf -> inf, -inf -> -inf, 3e38 -> 89.28999",
    "acosh": "1 -> 0, 0.9999999 -> nan, -1e9 -> nan, -inf -> nan, inf -> inf",
    "atanh": "0 -> 0, -0.0 -> -0.0, -1e-45 -> -1e-45, 1 -> inf, -1 -> -inf, 1.0000001 -> nan, "
    "inf -> nan, -inf -> nan",
    "log1p": "0 -> 0, -0.0 -> -0.0, -1e-45 -> -1e-45, -1 -> -inf, -1.0000001 -> nan, inf -> inf, "
    "-inf -> nan",
    "rsqrt": "0 -> inf, -0.0 -> -inf, inf -> 0, -1 -> nan, -inf -> nan, 4 -> 0.5",
}


def _run(program: tirx.PrimFunc, x: NDArray[np.float32], mcpu: str) -> NDArray[np.float32]:
    kernel = tvm.compile(program, target={"kind": "llvm", "mcpu": mcpu})
    y = tvm.runtime.empty(x.shape, "float32")
    kernel(tvm.runtime.tensor(x), y)
    return np.asarray(y.numpy())


def _loop_assembly(program: tirx.PrimFunc, mcpu: str) -> list[str]:
    """The instructions of the loop alone, without TVM's packed-function wrapper."""
    built = tvm.compile(program, target={"kind": "llvm", "mcpu": mcpu})
    text = built.mod.inspect_source("asm")
    body = re.search(r"^main_compute_:(.*?)\.size\s+main_compute_", text, re.DOTALL | re.MULTILINE)
    assert body is not None
    lines = (line.strip() for line in body.group(1).splitlines())
    return [line for line in lines if line and not line.startswith((".", "#")) and ":" not in line]


def _assert_packed(instructions: list[str]) -> None:
    calls = [line for line in instructions if line.startswith("call")]
    assert not calls
    # Scalar f32 arithmetic ends in "ss"; loading a constant to broadcast it is no arithmetic.
    scalar = {line.split()[0] for line in instructions if re.match(r"\w+ss\b", line)}
    assert scalar <= {"movss", "vmovss", "vbroadcastss"}


@pytest.mark.sampled
@pytest.mark.parametrize("mcpu", HOST_LEVELS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_within_the_stated_bound(name: str, mcpu: str) -> None:
    function = FUNCTIONS[name]
    found = measure(name, mcpu, bit_patterns(2039))
    for bound, error in zip(function.bounds, found, strict=True):
        # The bounds are those of the full measurement, with the last digit rounded up.
        assert error.ulp <= (bound.plain if mcpu == "x86-64" else bound.fused), (bound, error)
        assert error.special == 0
        assert error.flushed <= function.smallest


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_states_the_error(name: str) -> None:
    function = FUNCTIONS[name]
    document = function.emit.__doc__ or ""
    for bound in function.bounds:
        assert f"{bound.fused:g}" in document and f"{bound.plain:g}" in document
        assert math.isinf(bound.low) or f"{bound.low:g}" in document


@pytest.mark.sampled
@pytest.mark.parametrize("mcpu", HOST_LEVELS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, mcpu: str) -> None:
    x = np.zeros(64, np.float32)
    pairs = [pair.split("->") for pair in SPECIAL[name].split(",")]
    x[: len(pairs)] = [float(value) for value, _ in pairs]
    expected = np.array([float(value) for _, value in pairs], np.float32)
    y = _run(elementwise(FUNCTIONS[name].emit, LEVELS[mcpu], 64), x, mcpu)[: len(expected)]
    np.testing.assert_array_equal(y, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(expected[numbers]))


@pytest.mark.sampled
@pytest.mark.parametrize("lanes", HOST_LANES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_stays_nan(name: str, lanes: int) -> None:
    payloads = np.concatenate([2 ** np.arange(22) + 0x7FC00000, np.arange(0x7F800001, 0x7F80000B)])
    x = np.concatenate([payloads, payloads + 2**31]).astype(np.uint32).view(np.float32)
    y = _run(elementwise(FUNCTIONS[name].emit, lanes, 64), x, HOST_LEVELS[0])
    assert np.isnan(y).all()


@pytest.mark.parametrize("mcpu", HOST_LEVELS)
def test_gelu_erf_far_down(mcpu: str) -> None:
    x = np.linspace(-20, -8, 2**16, dtype=np.float32)
    y = _run(elementwise(vector_math.gelu_erf, LEVELS[mcpu], len(x)), x, mcpu).astype(np.float64)
    function = FUNCTIONS["gelu_erf"]
    exact = function.reference(x.astype(np.float64))
    large = np.abs(exact) >= function.smallest
    # 13% at the lower end, as the docstring says; nearer to -8 much less.
    np.testing.assert_allclose(y[large], exact[large], rtol=0.13)
    np.testing.assert_allclose(y[x > -10], exact[x > -10], rtol=1.1e-3)
    assert (np.abs(y - exact)[~large] <= function.smallest).all()
    assert (y[x < -13] == 0).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_lane_count_gives_the_same_bits(name: str) -> None:
    x = np.linspace(-20, 20, 4096, dtype=np.float32)
    levels = [mcpu for mcpu in HOST_LEVELS if mcpu != "x86-64"] or HOST_LEVELS
    expected, *others = (
        _run(elementwise(FUNCTIONS[name].emit, lanes, len(x)), x, mcpu)
        for mcpu in levels
        for lanes in (16, 8, 1)
    )
    for other in others:
        np.testing.assert_array_equal(other, expected)


@pytest.mark.sampled
@pytest.mark.parametrize("mcpu", LEVELS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_code_is_packed(name: str, mcpu: str) -> None:
    instructions = _loop_assembly(elementwise(FUNCTIONS[name].emit, LEVELS[mcpu], 1024), mcpu)
    _assert_packed(instructions)
    register = {"skylake-avx512": "zmm", "haswell": "ymm", "x86-64": "xmm"}[mcpu]
    assert any(f"%{register}" in line for line in instructions)


def _scalar_program(name: str, count: int) -> tirx.PrimFunc:
    """y = f(x), one element at a time, as a rewriting pass would write it."""

    def element(x: Expr) -> Expr:
        with let_scope() as lets:
            value = FUNCTIONS[name].emit(x)
        return with_lets(lets, value)

    x = te.placeholder((count,), "float32", name="x")
    y = te.compute((count,), lambda i: element(x(i)), name="y")
    return te.create_prim_func([x, y]).with_attr("global_symbol", "main")


@pytest.mark.sampled
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tvm_vectorizes_the_scalar_form(name: str) -> None:
    schedule = s_tir.Schedule(_scalar_program(name, 4096))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 16])[1])
    instructions = _loop_assembly(schedule.mod["main"], "skylake-avx512")
    _assert_packed(instructions)
    assert any("%zmm" in line for line in instructions)

    mcpu = HOST_LEVELS[0]
    x = np.linspace(-20, 20, 4096, dtype=np.float32)
    expected = _run(elementwise(FUNCTIONS[name].emit, 16, 4096), x, mcpu)
    np.testing.assert_array_equal(_run(schedule.mod["main"], x, mcpu), expected)


@pytest.mark.parametrize("name", vector_math_fit.FITS)
def test_tables_are_minimax(name: str) -> None:
    fit = vector_math_fit.FITS[name]()
    for table, coefficients in fit.coefficients.items():
        module = trigonometry if hasattr(trigonometry, table) else vector_math
        committed = getattr(module, table)
        # Another LAPACK may round a coefficient the other way: one float32 ulp.
        np.testing.assert_allclose(committed, coefficients, rtol=2.0**-23)


def test_bit_patterns_cover_both_ends_and_signs() -> None:
    numbers = np.concatenate(list(bit_patterns(2**23, 2.0**-3, 2.0**3)))
    expected = [2.0**exponent for exponent in range(-3, 4)]
    assert sorted(set(numbers.tolist())) == sorted([*expected, *(-value for value in expected)])


def test_errors_are_measured() -> None:
    errors = vector_math_error.Errors()
    x = np.array([1, 2, 3, 4], np.float32)
    exact = np.array([1.0, 2.0, 1e-40, 2.0**128])
    result = np.array([1 + 2.0**-23, 2, 0, math.inf], np.float32)
    errors.add(x, result, exact)
    assert (errors.ulp, errors.ulp_at, errors.special) == (1, 1, 0)
    assert errors.flushed == 1e-40
    errors.add(x, np.array([1, math.nan, 0, 3.4028235e38], np.float32), exact)
    assert (errors.ulp, errors.ulp_at, errors.special) == (1, 1, 1)

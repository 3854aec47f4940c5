"""Every fusible operator in the registers of a matmul, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.tir_schedules.run_region import ISAS, expected, machine_for, run
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue, epilogue_reference
from tir_schedules.epilogue.fusible_ops import FUSIBLE_OPS, SPECIAL_STEPS
from tir_schedules.product.matmul import MATMUL
from tir_schedules.product.zero_points import own_range

ROWS, COLUMNS = 5, 37
POSITIVE = ("log", "sqrt", "rsqrt")
CONDITIONS = ("less", "less_equal", "greater", "greater_equal")


def region_of(name: str) -> Region:
    """acc -> name(acc, operand, ...); a condition chooses between acc and the operand."""
    arity = FUSIBLE_OPS[name].arity
    matrix = Tensor((ROWS, COLUMNS), "float32")
    operands: tuple[Tensor, ...] = (matrix,) * (arity - 1)
    steps: tuple[EpilogueOp, ...]
    if name == "where":
        operands = (Tensor((ROWS, COLUMNS), "bool"), matrix)
        steps = (EpilogueOp("where", (1, 0, 2)),)
    elif name in CONDITIONS:
        steps = (EpilogueOp(name, (0, 1), dtype="bool"), EpilogueOp("where", (2, 0, 1)))
    else:
        steps = (EpilogueOp(name, tuple(range(arity))),)
    return Region(
        op="matmul",
        inputs=(Tensor((ROWS, 1), "float32"), Tensor((1, COLUMNS), "float32", True)),
        operands=operands,
        output=matrix,
        epilogue=steps,
    )


def arrays_for(name: str, region: Region) -> list[np.ndarray]:
    """Values with exact accumulators: K = 1, and powers of two in A."""
    rng = np.random.default_rng(0)
    low = 0.25 if name in POSITIVE else -3.0
    a = np.array([[1.0], [0.5], [1.0], [0.25], [1.0]], np.float32)
    w = rng.uniform(low, 3.0, (1, COLUMNS)).astype(np.float32)
    values = [
        rng.random(tensor.shape) < 0.5
        if tensor.dtype == "bool"
        else rng.uniform(0.5, 3.0, tensor.shape).astype(np.float32)
        for tensor in region.operands
    ]
    if name in CONDITIONS:
        values[0][:, ::3] = (a @ w)[:, ::3]  # also equal values
    return [a, w, *values]


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FUSIBLE_OPS)
def test_operator_in_the_epilogue(name: str, isa: str) -> None:
    region = region_of(name)
    arrays = arrays_for(name, region)
    exact = expected(region, arrays)
    # The largest error stated in vector_math for x >= -3 is 23 ulp; an ulp is at most eps * |y|.
    bound = 24 * np.finfo(np.float32).eps * np.abs(exact)
    assert (np.abs(run(region, arrays, isa) - exact) <= bound).all()


# Steps that are no single operator, after a product of integers or f32: whether the factors are
# 8-bit integers, operands, steps; the last step is the result.
PAIR = Tensor((2,), "float32")
SPECIAL: dict[str, tuple[bool, tuple[Tensor, ...], tuple[EpilogueOp, ...]]] = {
    "constant": (False, (), (EpilogueOp("constant", value=0.375), EpilogueOp("add", (0, 1)))),
    "item": (False, (PAIR,), (EpilogueOp("item", (1,), value=1.0), EpilogueOp("add", (0, 2)))),
    "range": (True, (), (
        EpilogueOp("cast", (0,)), EpilogueOp("range", value=0.0), EpilogueOp("add", (1, 2)),
    )),
    "cast": (True, (), (EpilogueOp("cast", (0,)),)),
    "quantize": (False, (PAIR,), (
        EpilogueOp("item", (1,), value=0.0), EpilogueOp("item", (1,), value=1.0),
        EpilogueOp("quantize", (0, 2, 3), dtype="int8"),
    )),
    "dequantize": (True, (), (
        EpilogueOp("constant", value=0.03), EpilogueOp("constant", value=-7.0),
        EpilogueOp("dequantize", (0, 1, 2)),
    )),
    "requantize": (True, (PAIR,), (
        EpilogueOp("constant", value=-7.0), EpilogueOp("item", (1,), value=0.0),
        EpilogueOp("requantize", (0, 2, 3), dtype="int8"),
    )),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SPECIAL_STEPS)
def test_every_other_step_in_the_epilogue(name: str, isa: str) -> None:
    integers, operands, steps = SPECIAL[name]
    dynamic: dict[str, Attribute] = {
        "a_quantize": "uint8",
        "a_scale": "dynamic",
        "a_zero_point": "dynamic",
    }
    region = Region(
        op="matmul",
        inputs=(
            Tensor((ROWS, 4), "float32"),
            Tensor((4, COLUMNS), "int8" if integers else "float32", True),
        ),
        operands=operands,
        output=Tensor((ROWS, COLUMNS), steps[-1].dtype),
        attrs=dynamic if integers else {},
        epilogue=steps,
    )
    rng = np.random.default_rng(0)
    a = (rng.integers(-8, 9, (ROWS, 4)) / 8).astype(np.float32)  # exact in any order of summation
    w = rng.integers(-8, 9, (4, COLUMNS)).astype(region.inputs[1].dtype)
    rest = [np.array([0.25, -3.0], np.float32) for _ in operands]
    result = MATMUL.reference(region, [a, w]).astype("int32" if integers else "float32")
    wanted = epilogue_reference(region, result, rest, own_range(region, [a, w]))
    np.testing.assert_array_equal(run(region, [a, w, *rest], isa), wanted)


def test_an_operator_that_is_not_in_the_table_is_refused() -> None:
    region = region_of("relu").replace(epilogue=(EpilogueOp("mystery", (0,)),))
    with pytest.raises(ConfigError, match="'mystery' is not a fusible operator"):
        Epilogue(region, [])
    machine = machine_for("avx512")
    with pytest.raises(ConfigError, match="'mystery'"):
        MATMUL.build(region, MATMUL.default_config(region, machine), isa_named("avx512"))


# Between -3 and 3 the largest error stated in vector_math is 23 ulp; beyond lie the special cases.
FLOATS = st.one_of(
    st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38]),
    st.floats(-3, 3, width=32),
)
# The sign of a zero is defined by one rounding alone.
EXACT = ("add", "subtract", "multiply", "divide", "negative", "abs", "square", "sqrt", "where")


def _vector(data: st.DataObject, dtype: str, count: int, finite: bool) -> np.ndarray:
    values = st.booleans() if dtype == "bool" else FLOATS.filter(np.isfinite) if finite else FLOATS
    return np.array(data.draw(st.lists(values, min_size=count, max_size=count)), dtype)


@examples(60, derandomize=True)
@given(st.sampled_from(sorted(FUSIBLE_OPS)), st.sampled_from(ISAS), st.integers(1, 40), st.data())
def test_every_float_has_the_result_of_numpy(
    name: str, isa: str, count: int, data: st.DataObject
) -> None:
    behind = region_of(name)
    row = Tensor((1, count), "float32")
    operands = tuple(Tensor(row.shape, tensor.dtype) for tensor in behind.operands)
    region = behind.replace(op="elementwise", inputs=(row,), operands=operands, output=row)
    # With a slope that is not finite, -0 counts as negative.
    arrays = [
        _vector(data, tensor.dtype, count, finite=name == "leaky_relu" and place == 1)[None]
        for place, tensor in enumerate((row, *operands))
    ]
    with np.errstate(all="ignore"):
        wide = [each if each.dtype == bool else each.astype(np.float64) for each in arrays]
        exact = epilogue_reference(region, wide[0], wide[1:]).astype(np.float32)
        got = run(region, arrays, isa)
        bound = 24 * np.finfo(np.float32).eps * np.abs(exact) + 4 * np.finfo(np.float32).tiny
        same = (got == exact) | (np.abs(got - exact) <= bound) | (np.isnan(got) & np.isnan(exact))
    assert same.all(), (arrays, got, exact)
    if name in EXACT:
        numbers = ~np.isnan(exact)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[numbers]))

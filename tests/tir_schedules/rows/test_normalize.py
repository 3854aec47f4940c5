"""Softmax and norm templates: rows around the vector, any axis, special values, chunks, threads."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm.ir.instrument import pass_instrument

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.tir_schedules.run_region import ISAS, MCPU, expected, machine_for, random_inputs, run
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.rows import normalize
from tir_schedules.rows.normalize import NormalizeConfig

EPS = np.finfo(np.float32).eps
TINY = float(np.finfo(np.float32).tiny)
SOFTMAXES = ("softmax", "log_softmax")
NORMS = ("layer_norm", "rms_norm")


def region_for(
    op: str,
    shape: tuple[int, ...],
    axis: int = -1,
    operands: tuple[Tensor, ...] = (),
    epilogue: tuple[EpilogueOp, ...] = (),
    epsilon: float = 1e-5,
) -> Region:
    axis %= len(shape)
    x, weight = Tensor(shape, "float32"), Tensor(shape[axis:], "float32", True)
    attrs: dict[str, Attribute] = {"axis": axis}
    if op in NORMS:
        attrs["epsilon"] = epsilon
    weights = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    return Region(
        op=op,
        inputs=(x, *(weight for _ in range(weights))),
        output=x,
        attrs=attrs,
        operands=operands,
        epilogue=epilogue,
    )


def config_for(**fields: int | bool) -> NormalizeConfig:
    base = {"rows": 1, "unroll": 1, "keep": False, "chunk": 1 << 20, "threads": 1}
    return NormalizeConfig.from_dict({**base, **fields})


def bound(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """Largest error of the anchor's result, to first order, with sums of n terms in any order.

    A sum of n terms has relative error n eps (Higham, section 4.2) and so has a mean. The rounding
    of x - max by eps / 2 changes its exponential by a factor of 1 + eps / 2 |x - max|, to which
    `exp_of_difference` adds (0.62 |x - max| + 2) eps; log, division and root add less than 6 eps
    together.
    """
    x = arrays[0].astype(np.float64)
    axis = int(region.attrs["axis"])
    result = template_for(region.op).reference(region, arrays[: len(region.inputs)])
    if region.op in SOFTMAXES:
        n = x.shape[axis]
        apart = np.abs(x - x.max(axis=axis, keepdims=True))
        if region.op == "softmax":
            return (n + 1.12 * apart + 8) * EPS * result + 2 * TINY
        # The sum, at least 1, is off by less than 2 eps more: each term by that of 1.
        logarithm = np.abs(x - x.max(axis=axis, keepdims=True) - result)
        return EPS * (n + 2 * apart + 8 * logarithm + np.abs(result)) + TINY
    axes = tuple(range(axis, x.ndim))
    n = int(np.prod(x.shape[axis:]))
    weights = [w.astype(np.float64) for w in arrays[1 : len(region.inputs)]]
    shift = weights[1] if len(weights) > 1 else 0.0
    error = (n + 8) * EPS * np.abs(result - shift) + 2 * EPS * np.abs(result) + TINY
    if region.op == "layer_norm":  # the mean is off by n eps mean(|x|), and so is x - mean
        scale = 1 / np.sqrt(x.var(axis=axes, keepdims=True) + float(region.attrs["epsilon"]))
        size = np.abs(x).mean(axis=axes, keepdims=True)
        error = error + np.abs(weights[0]) * scale * (n + 2) * EPS * size
    return error


def check(region: Region, isa: str, arrays: list[np.ndarray] | None = None, **options) -> None:
    arrays = random_inputs(region) if arrays is None else arrays
    result = run(region, arrays, isa, **options)
    assert not region.epilogue
    assert (np.abs(result - expected(region, arrays)) <= bound(region, arrays)).all()


@pytest.mark.sampled
@pytest.mark.parametrize("op", [*SOFTMAXES, *NORMS])
@pytest.mark.parametrize("isa", ISAS)
def test_row_one_less_than_a_vector_a_vector_and_one_more(op: str, isa: str) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    for vectors, rows in [(1, 3), (3, 5), (9, 4)]:
        for n in {max(1, vectors * lanes - 1), vectors * lanes, vectors * lanes + 1}:
            check(region_for(op, (rows, n)), isa, at_end=n % 2 == 0)


@pytest.mark.sampled
@pytest.mark.parametrize("op", SOFTMAXES)
@pytest.mark.parametrize("isa", ISAS)
def test_inner_axis_one_column_less_than_a_strip_a_strip_and_one_more(op: str, isa: str) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    for inner in {1, lanes + 1, 4 * lanes - 1, 4 * lanes, 9 * lanes + 2}:
        check(region_for(op, (2, 5, inner), axis=1), isa, at_end=inner % 2 == 0)


@given(
    st.sampled_from([*SOFTMAXES, *NORMS]),
    st.lists(st.integers(1, 9), min_size=0, max_size=3),
    st.integers(1, 90),
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),
)
@examples(25)
def test_random_shapes_axes_and_threads(
    op: str, lead: list[int], last: int, axis: int, threads: int, at_end: bool
) -> None:
    shape = (*lead, last)
    region = region_for(op, shape, axis=axis % len(shape))
    machine = machine_for(ISAS[-1], threads)
    default = template_for(op).default_config(region, machine)
    config = NormalizeConfig.from_dict({**default.to_dict(), "threads": threads})
    check(region, ISAS[-1], config=config, at_end=at_end)


@given(
    st.sampled_from([*SOFTMAXES, *NORMS]),
    st.integers(1, 5),
    st.integers(1, 300),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(1, 6),
)
@examples(20)
def test_a_row_in_chunks(op: str, rows: int, n: int, chunk: int, unroll: int, block: int) -> None:
    check(
        region_for(op, (rows, n)),
        ISAS[-1],
        config=config_for(rows=block, unroll=unroll, chunk=chunk),
    )


@pytest.mark.sampled
@pytest.mark.parametrize("op", [*SOFTMAXES, *NORMS])
def test_every_fifth_configuration_of_the_space(op: str) -> None:
    region = region_for(op, (7, 75))
    configs = list(template_for(op).space(region, machine_for(ISAS[-1])))
    assert len(set(configs)) == len(configs) > 10
    assert configs[0] == template_for(op).default_config(region, machine_for(ISAS[-1]))
    for config in configs[1::5]:
        check(region, ISAS[-1], config=config)


ROWS_OF_NO_NUMBER = {
    "all masked": [-np.inf] * 4,
    "infinite": [np.inf, 0, 1, 2],
    "not a number": [np.nan, 0, 1, 2],
    "not a number, late": [5, 4, np.nan, 1],
}
CONFIGS = [None, config_for(rows=2, chunk=1), config_for(rows=3, unroll=2, keep=True)]


@pytest.mark.sampled
@pytest.mark.parametrize("op", SOFTMAXES)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_without_a_result_are_nan_as_in_onnx_runtime(
    op: str, config: NormalizeConfig | None, axis: int
) -> None:
    if axis == 0:
        config = None
    rows = [row + [0.0] * 33 for row in map(list, ROWS_OF_NO_NUMBER.values())]
    rows[0] = [-np.inf] * 37
    good = list(np.linspace(-3, 3, 37))
    x = np.array([good, *rows, good], dtype=np.float32)
    region = region_for(op, x.shape if axis == 1 else x.T.shape, axis=axis)
    result = run(region, [x if axis == 1 else np.ascontiguousarray(x.T)], ISAS[-1], config=config)
    result = result if axis == 1 else result.T
    assert np.isnan(result[1:-1]).all()
    assert np.isfinite(result[[0, -1]]).all()


@pytest.mark.parametrize("config", CONFIGS)
def test_masked_and_huge_numbers(config: NormalizeConfig | None) -> None:
    masked = np.full(37, -np.inf)
    masked[35:] = [1.0, 1.0]  # the first chunks hold only masked numbers
    huge = np.full(37, -3e38)
    huge[3] = 3e38
    far = np.zeros(37)
    far[5] = 200.0
    x = np.stack([masked, huge, far, np.full(37, 3e38)]).astype(np.float32)
    result = run(region_for("softmax", x.shape), [x], ISAS[-1], config=config)
    half = np.zeros(37)
    half[35:] = 0.5
    # 2 eps: the exponentials of 0 are exact, the reciprocal and the product round
    for row, exact in zip(result[:2], [half, np.eye(37)[3]], strict=True):
        assert np.abs(row - exact).max() <= 2 * EPS
    assert result[2, 5] == 1.0
    assert result[2].sum() == 1.0
    assert np.abs(result[3] - 1 / 37).max() <= 4 * EPS / 37
    logarithm = run(region_for("log_softmax", x.shape), [x], ISAS[-1], config=config)
    assert np.isneginf(logarithm[0, :35]).all()
    assert logarithm[1, 3] == 0.0
    assert logarithm[2, 0] == -200.0


@pytest.mark.parametrize("config", CONFIGS)
def test_norms_of_constant_rows_and_of_far_away_ones(config: NormalizeConfig | None) -> None:
    region = region_for("layer_norm", (3, 37))
    gamma, beta = (np.linspace(-2, 2, 37, dtype=np.float32) for _ in range(2))
    x = np.zeros((3, 37), np.float32)
    x[1] = 0.5
    x[2] = np.linspace(-1, 1, 37) + 4096
    check(region, ISAS[-1], [x, gamma, beta], config=config)
    exact = run(region, [x, gamma, beta], ISAS[-1], config=config)
    assert (exact[0] == beta).all()
    broken = x.copy()
    broken[1, 7], broken[2, 36] = np.inf, np.nan
    result = run(region, [broken, gamma, beta], ISAS[-1], config=config)
    assert (result[0] == beta).all()
    assert np.isnan(result[1:]).all()
    check(region_for("rms_norm", (3, 37)), ISAS[-1], [x, gamma], config=config)


OPERANDS = {
    "scalar": (),
    "column": (4, 1, 1),
    "channel": (35,),
    "row": (1, 3, 1),
    "full": (4, 3, 35),
    "head": (1, 3, 35),
}


@pytest.mark.sampled
@pytest.mark.parametrize("op", [*SOFTMAXES, *NORMS])
def test_epilogue_with_operands_of_every_shape(op: str) -> None:
    operands = tuple(Tensor(shape, "float32") for shape in OPERANDS.values())
    count = len(operands)
    steps = [EpilogueOp("multiply", (0, 1))]
    for i in range(1, count):
        steps.append(EpilogueOp("add", (count + i, i + 1)))
    steps.append(EpilogueOp("relu", (2 * count,)))
    region = region_for(op, (4, 3, 35), operands=operands, epilogue=tuple(steps))
    for config in (None, config_for(rows=2, unroll=2, threads=2), config_for(keep=True, unroll=3)):
        arrays = random_inputs(region)
        plain = region.replace(operands=(), epilogue=())
        size = bound(plain, arrays) * np.abs(arrays[len(region.inputs)])
        total = np.abs(template_for(op).reference(region, arrays[: len(region.inputs)]))
        total = total * np.abs(arrays[len(region.inputs)]) + sum(
            np.abs(array) for array in arrays[len(region.inputs) + 1 :]
        )
        slack = size + 2 * count * EPS * total  # each operator rounds at most `total` by eps
        difference = np.abs(run(region, arrays, ISAS[-1], config) - expected(region, arrays))
        assert (difference <= slack).all()


def test_epilogue_along_an_inner_axis() -> None:
    shapes = ((), (2, 1, 1, 1), (5, 1, 1), (3, 11), (2, 5, 3, 11))
    operands = tuple(Tensor(shape, "float32") for shape in shapes)
    steps = tuple(EpilogueOp("add", (0 if i == 0 else 5 + i, i + 1)) for i in range(5))
    region = region_for("softmax", (2, 5, 3, 11), 1, operands, steps)
    arrays = random_inputs(region)
    difference = np.abs(run(region, arrays, ISAS[-1]) - expected(region, arrays))
    total = 1 + sum(np.abs(array) for array in arrays[1:])
    assert (difference <= bound(region, arrays) + 10 * EPS * total).all()


def test_what_is_rejected_is_told_why() -> None:
    isa = isa_named("avx512")

    def reason(region: Region) -> str:
        return template_for(region.op).reject(region, isa) or ""

    narrow = (Tensor((11,), "float32"),)
    steps = (EpilogueOp("add", (0, 1)),)
    assert "broadcasts within" in reason(region_for("softmax", (2, 5, 3, 11), 1, narrow, steps))
    assert "broadcasts within" in reason(region_for("layer_norm", (2, 5, 11), 1, narrow, steps))
    assert "is 0" in reason(region_for("softmax", (2, 0)))
    half = Tensor((2, 3), "float16")
    region = region_for("softmax", (2, 3)).replace(inputs=(half,))
    assert "float16" in reason(region)
    norm = region_for("rms_norm", (2, 8))
    wrong = norm.replace(inputs=(norm.inputs[0], Tensor((3,), "float32")))
    assert "3 numbers for 8" in reason(wrong)
    inner = region_for("softmax", (2, 5, 3), 1)
    assert "bfloat16 along an inner axis" in reason(
        inner.replace(output=Tensor((2, 5, 3), "bfloat16"))
    )
    with pytest.raises(ConfigError, match="axis 5"):
        normalize.view(norm.replace(attrs={"axis": 5, "epsilon": 0.0}))


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": 0},
        {"unroll": 33},
        {"chunk": 0},
        {"threads": 0},
        {"keep": True, "rows": 16},
        {"keep": True, "rows": 1, "chunk": 127},
    ],
)
def test_illegal_configurations(fields: dict[str, int | bool]) -> None:
    with pytest.raises(ConfigError):
        template_for("softmax").build(
            region_for("softmax", (16, 2048)), config_for(**fields), isa_named("avx512")
        )


@pytest.mark.parametrize(("isa", "register"), [("avx2", "ymm"), ("avx512", "zmm")])
@pytest.mark.parametrize(("op", "axis"), [("softmax", 1), ("softmax", 0), ("layer_norm", 1)])
def test_code_is_vector_code(isa: str, register: str, op: str, axis: int) -> None:
    region = region_for(op, (24, 203), axis=axis)
    config = template_for(op).default_config(region, machine_for(isa))
    function = template_for(op).build(region, config, isa_named(isa))
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[isa]})
    library = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    code = library.mod.inspect_source("asm") if hasattr(library, "mod") else ""
    assert f"vmulps\t%{register}" in code
    assert "expf" not in code
    assert "TVMBackendAllocWorkspace" not in code
    # Masked loads and stores of the tail vector are single instructions, not branches per lane.
    assert ("{%k" if isa == "avx512" else "vmaskmovps") in code


@pytest.mark.sampled
@pytest.mark.parametrize("op", [*SOFTMAXES, *NORMS])
def test_lowering_does_not_inline_without_bounds(op: str) -> None:
    region = region_for(op, (8, 75))
    config = template_for(op).default_config(region, machine_for("avx512"))
    function = template_for(op).build(region, config, isa_named("avx512"))
    sizes: list[int] = []

    @pass_instrument
    class Sizes:
        def run_after_pass(self, mod: tvm.IRModule, info: object) -> None:
            sizes.append(len(mod.script()))

    with tvm.transform.PassContext(instruments=[Sizes()]):
        target = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
        tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    # The arithmetic of one vector is inlined; whole rows would be a hundred times as long.
    assert max(sizes) < 12 * len(function.script())


def test_names_threads_and_counts() -> None:
    small, large = region_for("softmax", (8, 16)), region_for("softmax", (1536, 512))
    machine = machine_for("avx512", threads=4)
    template = template_for("softmax")
    assert template.default_config(small, machine).threads == 1
    config = template.default_config(large, machine)
    assert config.threads == 4
    assert template.kernel_name(large, config, machine.isa) == "avx512_rows_softmax"
    column = region_for("softmax", (2, 5, 7), axis=1)
    assert template.kernel_name(column, config, isa_named("scalar")) == "scalar_columns_softmax"
    assert template.flops(small) == 5 * 128


@pytest.mark.parametrize(
    ("op", "n", "rows"),
    [
        *(("layer_norm", n, rows) for n, rows in [(384, 6), (768, 4), (1024, 2), (4096, 2)]),
        *(("rms_norm", n, rows) for n, rows in [(384, 6), (768, 4), (1024, 1), (4096, 1)]),
        *(("softmax", n, rows) for n, rows in [(256, 4), (768, 2), (1024, 1), (4096, 1)]),
    ],
)
def test_rows_that_share_a_cache_set_are_few(op: str, n: int, rows: int) -> None:
    region = region_for(op, (64, n))
    config = template_for(op).default_config(region, machine_for("avx512"))
    assert config.rows == rows

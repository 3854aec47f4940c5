"""Sums beyond the range or precision of float16 and bfloat16: every ONNX operator that sums.

Elements are near 300: 256 of them sum to more than 65504, and the square of one is above it. Equal
terms of bfloat16 stop adding up after 256 of them, of float16 after 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from numpy.typing import NDArray
from tvm import tirx

import tvm_hybrid
from relay_passes.ir.rewrite import is_kernel
from relay_passes.legalize.schedule_generic import legalize_operators
from relay_passes.lower_module import passes_through, run_passes
from relay_passes.pipeline import Phase
from relay_passes.pipeline_options import PipelineOptions
from tests.onnx_builder import CONTRIB, OnnxBuilder
from tests.relay_passes.graphs import TARGET
from tvm_hybrid.frontend.onnx.onnx_import import import_onnx

pytestmark = pytest.mark.turns

Floats = NDArray[np.float64]
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
E = 2.0**-24
RNG = np.random.default_rng(0)

# Multiples of 4 below 512, which both types represent exactly.
X = 4 * np.rint(RNG.normal(75, 10, (4, 4, 16, 16))).clip(50, 100)
HALVES = np.where(np.arange(16) < 8, 1.0, -1.0)
INPUTS: dict[str, tuple[Floats, tuple[int | str, ...]]] = {
    "x": (X, ("n", 4, "h", 16)),
    "signed": (2 * X * HALVES[:, None], ("n", 4, "h", 16)),  # sums beyond 65504 that come back
    "powers": (np.broadcast_to(8.0**HALVES, X.shape), ("n", 4, "h", 16)),  # so do products
    "row": (X.reshape(4, 4, 256), ("n", 4, 256)),
    "volume": (X.reshape(4, 4, 4, 8, 8), ("n", 4, "d", "a", "b")),
    "tokens": (X[0], (4, "t", 16)),
    "zeros": (np.zeros((2, 5000)), ("m", "c")),
}
TURNING = 2 * np.repeat(HALVES, 16)[:, None] * np.ones(8)
SPACE = (2, 3)
ONES, ZEROS, ROW_OF_ONES = np.ones(4), np.zeros(4), np.ones(16)
CLASSES = RNG.integers(0, 4, (4, 16, 16))


@dataclass(frozen=True)
class Case:
    """An operator on one of `INPUTS` and constants, and its result in float64."""

    op: str
    want: Callable[[Floats], Any]
    constants: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    of: str = "x"
    outputs: int = 1
    is_static: bool = False  # whether its sizes must be static

    def add(self, model: OnnxBuilder, x: str, dtype: np.dtype[Any]) -> str:
        """Adds the operator in a type to a model; returns its first result."""
        names = [
            ""
            if each is None
            else model.constant(each, dtype if np.asarray(each).dtype == np.float64 else None)
            for each in self.constants
        ]
        domain = CONTRIB if self.op.startswith("Skip") else ""
        return model.nodes(self.op, self.outputs, x, *names, domain=domain, **self.attributes)[0]


def windows(x: Floats, size: int) -> Floats:
    """Every window over the last two axes, with its elements along one axis."""
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=SPACE)
    return view.reshape(*view.shape[:4], size * size)


def padded(x: Floats, pad: int) -> Floats:
    return np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))


def normal(x: Floats, axes: tuple[int, ...]) -> Floats:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axes, keepdims=True)))


def log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def norm(x: Floats, p: int, axes: tuple[int, ...]) -> Floats:
    return np.asarray((np.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p))


def root_mean_square(x: Floats) -> Floats:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True)))


def local_response(x: Floats) -> Floats:
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    return np.asarray(x / (1 + 1e-4 / 3 * total) ** 0.75)


def chosen(x: Floats) -> Floats:
    """The elements that CLASSES selects along axis 1."""
    return np.take_along_axis(x, CLASSES[:, None], 1)


def with_first(x: Floats) -> Floats:
    """x with the sum of each row of X added to the row's first element."""
    return np.concatenate([x[..., :1] + X.sum(-1, keepdims=True), x[..., 1:]], -1)


def reduced(op: str, want: Callable[[Floats], Any], of: str = "x", *axes: int) -> Case:
    return Case(op, want, (np.array(axes or SPACE),), {"keepdims": 0}, of)


POOL = {"kernel_shape": [15, 15]}
CASES = [
    reduced("ReduceMean", lambda x: x.mean(SPACE)),
    reduced("ReduceMean", lambda x: x.mean((0, 3)), "x", 0, 3),
    reduced("ReduceSum", lambda x: x.sum(SPACE), "signed"),
    reduced("ReduceSum", lambda x: x.sum(SPACE)),  # beyond float16 even after rounding: inf
    reduced("ReduceL1", lambda x: x.sum(SPACE)),
    reduced("ReduceSumSquare", lambda x: (x * x).sum(SPACE)),
    reduced("ReduceL2", lambda x: norm(x, 2, SPACE)[..., 0, 0]),
    reduced("ReduceLogSum", lambda x: np.log(x.sum(SPACE))),
    reduced("ReduceLogSumExp", lambda x: np.log(np.exp(x).sum(-1)), "zeros", 1),
    reduced("ReduceProd", lambda x: x.prod(3), "powers", 3),
    Case("CumSum", lambda x: x.cumsum(2), (np.array(2),), of="signed"),
    Case("GlobalAveragePool", lambda x: x.mean(SPACE, keepdims=True)),
    Case("AveragePool", lambda x: windows(x, 15).mean(-1), (), POOL),
    Case(
        "AveragePool",
        lambda x: windows(padded(x, 2), 17)[:, :, ::3, ::3].mean(-1),
        (),
        {"kernel_shape": [17] * 2, "pads": [2] * 4, "strides": [3] * 2, "count_include_pad": 1},
    ),
    Case(
        "AveragePool",
        lambda x: windows(padded(x, 2), 18).sum(-1) / windows(padded(x > 0, 2), 18).sum(-1),
        (),
        {"kernel_shape": [18] * 2, "pads": [2] * 4, "strides": [1] * 2, "ceil_mode": 1},
    ),
    Case("AveragePool", lambda x: x.mean(2, keepdims=True), (), {"kernel_shape": [256]}, "row"),
    Case(
        "AveragePool",
        lambda x: x.mean((2, 3, 4), keepdims=True),
        (),
        {"kernel_shape": [4, 8, 8]},
        "volume",
    ),
    Case("LpPool", lambda x: (windows(x, 15) ** 2).sum(-1) ** 0.5, (), {**POOL, "p": 2}),
    Case("GlobalLpPool", lambda x: norm(x, 2, SPACE), (), {"p": 2}),
    Case("GlobalLpPool", lambda x: norm(x, 3, SPACE), (), {"p": 3}),
    Case(
        "LpNormalization", lambda x: x / norm(x, 2, (-1,)), (), {"axis": -1, "p": 2}, "x", 1, True
    ),
    Case("InstanceNormalization", lambda x: normal(x, SPACE), (ONES, ZEROS)),
    Case("LayerNormalization", lambda x: normal(x, (3,)), (ROW_OF_ONES, 0 * ROW_OF_ONES)),
    Case(
        "LayerNormalization",
        lambda x: normal(x, SPACE),
        (np.ones((16, 16)),),
        {"axis": 2},
        "x",
        1,
        True,
    ),
    Case(
        "GroupNormalization",
        lambda x: normal(x.reshape(4, 2, -1), (2,)).reshape(X.shape),
        (ONES, ZEROS),
        {"num_groups": 2},
    ),
    Case("RMSNormalization", root_mean_square, (ROW_OF_ONES,)),
    Case("MeanVarianceNormalization", lambda x: normal(x, (0, 2, 3))),
    Case("LRN", local_response, (), {"size": 3}),
    Case(
        "BatchNormalization",
        lambda x: normal(x, (0, 2, 3)),
        (ONES, ZEROS, ZEROS, ONES),
        {"training_mode": 1},
        outputs=3,
        is_static=True,
    ),
    Case(
        "SkipLayerNormalization",
        lambda x: normal(x + X[1], (2,)),
        (X[1], ROW_OF_ONES, 0 * ROW_OF_ONES),
        of="tokens",
    ),
    Case(
        "SkipSimplifiedLayerNormalization",
        lambda x: root_mean_square(x + X[1]),
        (X[1], ROW_OF_ONES),
        of="tokens",
    ),
    Case("Softmax", lambda x: np.exp(log_softmax(x)), of="zeros"),
    Case("LogSoftmax", log_softmax, of="zeros"),
    Case("NegativeLogLikelihoodLoss", lambda x: -chosen(x).mean(), (CLASSES,)),
    Case(
        "SoftmaxCrossEntropyLoss",
        lambda x: -chosen(log_softmax(x)).sum(),
        (CLASSES,),
        {"reduction": "sum"},
    ),
    Case("Einsum", lambda x: x.sum(SPACE), (), {"equation": "abij->ab"}, "signed"),
    Case("MatMul", lambda x: x @ TURNING, (TURNING,), {}, "row"),
    Case(
        "Conv", lambda x: x.sum((1, 2, 3), keepdims=True), (np.ones((1, 4, 16, 16)),), {}, "signed"
    ),
    Case(
        "ConvTranspose",
        lambda x: windows(padded(x, 14), 15).sum((1, -1))[:, None],
        (np.ones((4, 1, 15, 15)),),
        {},
        "signed",
    ),
    Case("Mean", lambda x: (x + 256 * X) / 3, (X * 128, X * 128)),
    Case("Sum", lambda x: x, (X * 128, X * 128, X * -128, X * -128)),
    Case(
        "RoiAlign",
        lambda x: x[:1].mean(SPACE, keepdims=True),
        (np.array([[0, 0, 16, 16.0]]), np.array([0])),
        {"sampling_ratio": 16, "coordinate_transformation_mode": "half_pixel"},
    ),
    Case(
        "GridSample",
        lambda x: x[:, :, 7:9, 7:9].mean(SPACE, keepdims=True),
        (np.zeros((4, 1, 1, 2)),),
    ),
    Case(
        "ScatterElements",
        with_first,
        (np.zeros(X.shape, np.int64), X),
        {"reduction": "add", "axis": 3},
    ),
]
IDS = [f"{case.op}-{number}" for number, case in enumerate(CASES)]


def cases_of(kind: str, keep_dynamic: bool) -> list[Case]:
    """The cases that exist for a type; ONNX has no Einsum of bfloat16."""
    return [
        case
        for case in CASES
        if not (keep_dynamic and case.is_static) and (case.op, kind) != ("Einsum", "bfloat16")
    ]


def model_of(cases: list[Case], kind: str, keep_dynamic: bool) -> Any:
    """A model with the results of all cases, with static or dynamic sizes."""
    model, dtype = OnnxBuilder(opset=23), TYPES[kind]
    for name, (value, dims) in INPUTS.items():
        if any(case.of == name for case in cases):
            model.input(name, dims if keep_dynamic else value.shape, dtype)
    for case in cases:
        model.output(case.add(model, case.of, dtype), None, dtype)
    return model.model()


@pytest.mark.parametrize(
    ("kind", "keep_dynamic"),
    [
        ("float16", False),
        ("bfloat16", True),
        pytest.param("float16", True, marks=pytest.mark.sampled),
        pytest.param("bfloat16", False, marks=pytest.mark.sampled),
    ],
)
def test_every_sum_is_rounded_once(kind: str, keep_dynamic: bool) -> None:
    """All cases in one program, which compiles faster than one program each."""
    dtype, cases = TYPES[kind], cases_of(kind, keep_dynamic)
    source = model_of(cases, kind, keep_dynamic).SerializeToString()
    executable = tvm_hybrid.compile(source, num_threads=1, records=[], keep_dynamic=keep_dynamic)
    results = executable.run(*(value.astype(dtype) for value, _ in INPUTS.values()))
    rounding = float(ml_dtypes.finfo(dtype).eps)  # twice the error of one rounding
    for case, result in zip(cases, results, strict=True):
        exact, rounded = np.asarray(case.want(INPUTS[case.of][0])), result.numpy()
        assert rounded.dtype == dtype and rounded.shape == exact.shape, case
        with np.errstate(over="ignore"):
            wanted = exact.astype(dtype)
        # Besides the rounding: a float32 sum of at most 5000 terms, mostly of a few hundred.
        off = rounding * abs(exact) + 1024 * E * abs(exact).max()
        close = (wanted == rounded) | (abs(rounded.astype(np.float64) - exact) <= off)
        assert close.all(), (case.op, exact[~close][:4], rounded[~close][:4])


@pytest.mark.parametrize("keep_dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_nothing_is_computed_in_float16(case: Case, keep_dynamic: bool) -> None:
    """Each operator alone: beside other operators all would be widened."""
    if keep_dynamic and case.is_static:
        return
    options = PipelineOptions(TARGET)
    mod = import_onnx(model_of([case], "float16", keep_dynamic), keep_dynamic=keep_dynamic).mod
    passes = [*passes_through(Phase.CLEAN_UP, options, []), legalize_operators()]
    found: list[tirx.Expr] = []

    def note(value: Any) -> None:
        if str(value.ty.dtype) == "float16":
            found.append(value)

    for function in run_passes(mod, passes, options).functions.values():
        if is_kernel(function):
            for kind in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div):
                tvm_ffi.structural_walk(function.body, (kind, note))
    assert not found


@pytest.mark.parametrize("kind", TYPES)
def test_a_sum_of_constants(kind: str) -> None:
    """A sum of constants is computed at import."""
    model, dtype = OnnxBuilder(opset=18), TYPES[kind]
    weight = model.constant(np.full((4, 256), 300), dtype)
    norms = model.node("ReduceL2", weight, model.constant(np.array([1])), keepdims=0)
    model.output(
        model.node("Neg", model.node("Add", model.input("x", (4,), dtype), norms)), (4,), dtype
    )
    session = tvm_hybrid.InferenceSession(model.model(), num_threads=1, records=[])
    (result,) = session.run(None, {"x": np.zeros(4, dtype)})
    np.testing.assert_array_equal(result, np.full(4, -16 * 300).astype(dtype))

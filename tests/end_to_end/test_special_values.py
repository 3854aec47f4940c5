"""NaN, infinities, zeros of both signs and denormals in every elementwise operator: alone and
behind a product, with fusion and without, on every ISA of the ladder that runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import erf
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_hybrid
from tests.microkernels.isa_targets import target_of
from tests.stand_ins import running
from tests.stand_ins.isas_run import substitute_of

pytestmark = pytest.mark.turns

F = np.float32
NAN, INF = np.nan, np.inf
# fmt: off
VALUES = np.array([
    NAN, INF, -INF, -0.0, 0.0, 1e-40, -1e-40, 1e-45, 3e38, -3e38, 88, 89, -88, -104, 20, -20, 1e10,
    -1e10, 0.5, -0.5, 1, -1, 0.3, 2.5,
], F)
# fmt: on What the least significant digits of vector_math may be wrong for these inputs (see its
# docstrings), and what it may flush to 0: a factor below 2^-126, times an x of -104 at most.
RELATIVE, FLUSHED = 24 * 2.0**-23, 104 * 2.0**-126


@dataclass(frozen=True)
class Case:
    """One operator: "x" is its input, "t" another tensor, a number a constant."""

    op: str
    meaning: Callable[..., Any]
    inputs: tuple[Any, ...] = ("x",)
    attributes: dict[str, Any] = field(default_factory=dict)
    signs: bool = True  # whether the sign of a zero result is defined


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def _elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.logaddexp(0, x))


def _cast(bits: int) -> Callable[[np.ndarray], np.ndarray]:
    """As x86 and ONNX Runtime convert: overflow gives the lowest integer.

    Types below 32 bits take the low bits of the int32 result.
    """
    wide = max(bits, 32)
    least, end = -(2 ** (wide - 1)), 2.0 ** (wide - 1)

    def meaning(x: np.ndarray) -> np.ndarray:
        fits = (x >= least) & (x < end)
        integers = [int(v) if fit else least for v, fit in zip(x.flat, fits.flat, strict=True)]
        wrapped = [(i + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for i in integers]
        return np.array(wrapped, f"int{bits}").reshape(x.shape)

    return meaning


def _power(x: np.ndarray, exponent: float) -> np.ndarray:
    """IEEE 754's pow; NumPy computes a root if the exponent is a scalar."""
    return np.power(x, np.full(x.shape, exponent))


ONE_SLOPE = np.array([0.5], F)
# maximum and minimum of 0 and -0 may give either zero, and so may operators built of them.
CASES: dict[str, Case] = {
    "relu": Case("Relu", lambda x: np.maximum(x, 0), signs=False),
    "leaky_relu": Case("LeakyRelu", lambda x: np.where(x < 0, x * F(0.01), x)),
    "flat": Case("LeakyRelu", lambda x: np.where(x < 0, x * 0, x), attributes={"alpha": 0.0}),
    "steep": Case("LeakyRelu", lambda x: np.where(x < 0, x * 2, x), attributes={"alpha": 2.0}),
    "prelu": Case("PRelu", lambda x, s: np.where(x < 0, x * s, x), ("x", ONE_SLOPE)),
    "sigmoid": Case("Sigmoid", _sigmoid),
    "tanh": Case("Tanh", np.tanh),
    "erf": Case("Erf", np.vectorize(erf)),
    "exp": Case("Exp", np.exp),
    "log": Case("Log", np.log),
    "sqrt": Case("Sqrt", np.sqrt),
    "rsqrt": Case("Reciprocal", lambda x: 1 / x),
    "abs": Case("Abs", np.abs),
    "neg": Case("Neg", np.negative),
    "sign": Case("Sign", np.sign),
    "gelu": Case("Gelu", _gelu, signs=False),
    "hard_swish": Case("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "hard_sigmoid": Case("HardSigmoid", lambda x: np.clip(F(0.2) * x + 0.5, 0, 1)),
    "elu": Case("Elu", _elu),
    "celu": Case("Celu", _elu, attributes={"alpha": 1.0}),
    "selu": Case("Selu", lambda x: 1.0507010 * _elu(x, 1.6732632)),
    "softplus": Case("Softplus", lambda x: np.logaddexp(0, x)),
    "softsign": Case("Softsign", lambda x: x / (1 + np.abs(x))),
    "mish": Case("Mish", _mish),
    "thresholded": Case("ThresholdedRelu", lambda x: np.where(x > 1, x, 0)),
    "floor": Case("Floor", np.floor),
    "ceil": Case("Ceil", np.ceil),
    "round": Case("Round", np.rint),
    "is_nan": Case("IsNaN", np.isnan),
    "clip": Case("Clip", lambda x, low, high: np.clip(x, low, high), ("x", F(-1), F(1))),
    "clip_up": Case("Clip", lambda x, low: np.maximum(x, low), ("x", F(-2))),
    "max_0": Case("Max", np.maximum, ("x", F(0)), signs=False),
    "max_nan": Case("Max", np.maximum, ("x", F(NAN))),
    "min_1": Case("Min", np.minimum, (F(1), "x")),
    "max_t": Case("Max", np.maximum, ("x", "t"), signs=False),
    "min_t": Case("Min", np.minimum, ("t", "x"), signs=False),
    "times_0": Case("Mul", np.multiply, ("x", F(0))),
    "times_minus_0": Case("Mul", np.multiply, (F(-0.0), "x")),
    "plus_0": Case("Add", np.add, ("x", F(0)), signs=False),  # the compiler removes it
    "minus_itself": Case("Sub", np.subtract, ("x", "x")),
    "minus_t": Case("Sub", np.subtract, ("x", "t")),
    "0_over": Case("Div", np.divide, (F(0), "x")),
    "over_minus_0": Case("Div", np.divide, ("x", F(-0.0))),
    "over_itself": Case("Div", np.divide, ("x", "x")),
    "squared": Case("Pow", np.power, ("x", F(2))),
    "cubed": Case("Pow", np.power, ("x", F(3))),
    "root": Case("Pow", _power, ("x", F(0.5))),
    "inverse_root": Case("Pow", _power, ("x", F(-0.5))),
    "inverse": Case("Pow", _power, ("x", F(-1))),
    "less": Case("Less", np.less, ("x", "t")),
    "equals_itself": Case("Equal", np.equal, ("x", "x")),
    "at_least": Case("GreaterOrEqual", np.greater_equal, ("x", F(0))),
    "int8": Case("Cast", _cast(8), attributes={"to": onnx.TensorProto.INT8}),
    "int32": Case("Cast", _cast(32), attributes={"to": onnx.TensorProto.INT32}),
    "int64": Case("Cast", _cast(64), attributes={"to": onnx.TensorProto.INT64}),
    "bool": Case("Cast", lambda x: x != 0, attributes={"to": onnx.TensorProto.BOOL}),
}  # fmt: skip


def _model() -> onnx.ModelProto:
    """A model with every operator alone, and behind a product with its own width and input."""
    nodes, constants, inputs, outputs = [], [], [], []

    def add_input(name: str) -> str:
        inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (24, 1)))
        return name

    def constant(name: str, value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    for number, (name, case) in enumerate(CASES.items()):
        x = add_input(f"{name}.x")
        w = constant(f"{name}.w", np.ones((1, 3 + number), F))
        nodes.append(helper.make_node("MatMul", [x, w], [f"{name}.y"]))
        if any(isinstance(each, str) and each == "t" for each in case.inputs):
            add_input(f"{name}.t")
        for kind, source in (("alone", x), ("fused", f"{name}.y")):
            names = []
            for place, each in enumerate(case.inputs):
                if isinstance(each, str):
                    names.append(source if each == "x" else f"{name}.t")
                else:
                    names.append(constant(f"{name}.{kind}.{place}", each))
            node = helper.make_node(case.op, names, [f"{name}.{kind}"], **case.attributes)
            nodes.append(node)
            outputs.append(helper.make_empty_tensor_value_info(f"{name}.{kind}"))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def _expected(case: Case, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The result in float64, with float32's overflow to infinity."""
    given = {"x": x.astype(np.float64), "t": t.astype(np.float64)}
    with np.errstate(all="ignore"):
        arguments = [given[a] if isinstance(a, str) else np.float64(a) for a in case.inputs]
        result = np.asarray(case.meaning(*arguments))
        return result.astype(F) if result.dtype == np.float64 else result


def _wrong(got: np.ndarray, expected: np.ndarray, signs: np.ndarray) -> np.ndarray:
    if expected.dtype != F:
        return got != expected
    nan = np.isnan(got) | np.isnan(expected)
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - expected)
        near = (got == expected) | (error <= RELATIVE * np.abs(expected) + FLUSHED)
    zeros = (got == 0) & (expected == 0) & signs
    flipped = zeros & (np.signbit(got) != np.signbit(expected))
    return np.where(nan, np.isnan(got) != np.isnan(expected), ~near | flipped)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("isa", "fusion"), [("scalar", "coarse"), ("avx2", "none"), ("avx512", "coarse")]
)
def test_every_operator_has_its_ieee_meaning(isa: str, fusion: str) -> None:
    target = target_of(substitute_of(isa))
    with running.pretending(isa), running.made_for(isa):
        session = tvm_hybrid.InferenceSession(
            _model(), num_threads=1, records=[], fusion=fusion, target=target
        )
        _judge(session)
    kernels = [each.kernel for each in session.executable.explain().taken]
    assert len(kernels) >= len(CASES) and all(kernel.startswith(isa) for kernel in kernels)


def _judge(session: tvm_hybrid.InferenceSession) -> None:
    """Runs the model and names every operator with a wrong result."""
    x, t = VALUES[:, None], np.roll(VALUES, 1)[:, None]
    names = [each.name for each in session.get_inputs()]
    outputs = session.run(None, {name: t if name.endswith(".t") else x for name in names})
    wrong = []
    for output, got in zip(session.get_outputs(), outputs, strict=True):
        name, kind = output.name.rsplit(".", 1)
        expected = np.broadcast_to(_expected(CASES[name], x, t), got.shape)
        assert got.dtype == expected.dtype, output.name
        # A sum of one product may start at 0, and 0 + -0 is 0; a factor is folded into its weight.
        sums = (x == 0) | (CASES[name].op == "Mul")
        signs = CASES[name].signs & ((kind == "alone") | ~sums)
        for row, column in np.argwhere(_wrong(got, expected, signs))[:2]:
            found, right = got[row, column], expected[row, column]
            wrong.append(f"{output.name}({x[row, 0]}, {t[row, 0]}): {found}, not {right}")
    assert not wrong, "\n".join(wrong)

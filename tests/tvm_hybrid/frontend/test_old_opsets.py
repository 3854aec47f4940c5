"""Operators in the forms of opsets 1 to 6, compared with the model in the form of opset 12."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import ModelError, ShapeError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.graph.graph import Graph
from tvm_hybrid.frontend.onnx.reader.old_forms import renewed

from .models import f32, make_model, parsed, random

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
LOGIC = ("And", "Or", "Xor")
COMPARISONS = ("Less", "Greater", "Equal")
# Shapes of the second operand, and the axis of x: [2, 3, 4, 5] at which it begins.
OPERANDS = [((3,), 1), ((3, 4), 1), ((2,), 0), ((1,), 2), ((4, 5), None), ((5,), -1)]
# Opset and form, and the form of opset 12. x is [2, 3, 4, 5], m [3, 4], c [3], s int64[2, 2].
FORMS = {
    "Cast": (5, 'Cast<to = "INT32">(x)', "Cast<to = 6>(x)"),
    "Concat": (1, "Concat(x, x)", "Concat<axis = 1>(x, x)"),
    "Relu": (5, "Relu<consumed_inputs = [0]>(x)", "Relu(x)"),
    "Clip": (5, "Clip<min = -0.5, max = 0.5, consumed_inputs = [0]>(x)", "Clip(x, low, high)"),
    "Selu": (5, "Selu(x)", "Selu<alpha = 1.6732, gamma = 1.0507>(x)"),
    "Reshape": (4, "Reshape<shape = [6, -1]>(x)", "Reshape(x, sizes)"),
    "Upsample": (
        *(6, 'Upsample<height_scale = 2.0, width_scale = 3.0, mode = "bilinear">(x)'),
        'Resize<mode = "linear", coordinate_transformation_mode = "asymmetric">(x, none, scales)',
    ),
    "Pad": (1, "Pad<paddings = [0, 0, 1, 2, 0, 0, 3, 0], value = 2.0>(x)", "Pad(x, pads, two)"),
    "Tile": (5, "Tile(x, three, one)", "Tile(x, repeats)"),
    "PRelu": (6, "PRelu(x, c)", "PRelu(x, c3)"),
    "Gemm": (6, "Gemm<broadcast = 1, transA = 1>(m, m, bias)", "Gemm<transA = 1>(m, m, bias)"),
    "BatchNormalization": (
        *(6, "BatchNormalization<is_test = 1>(x, c, c, c, c)"),
        "BatchNormalization(x, c, c, c, c)",
    ),
    "Dropout": (6, "Dropout<is_test = 1>(x)", "Identity(x)"),
    "LpPool": (1, "LpPool<kernel_shape = [2, 2], p = 3.0>(x)",
               "LpPool<kernel_shape = [2, 2], p = 3>(x)"),
    "GlobalLpPool": (1, "GlobalLpPool<p = 1.0>(x)", "GlobalLpPool<p = 1>(x)"),
    "AveragePool": (6, "AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)",
                    "AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)"),
}  # fmt: skip
CONSTANTS = {
    "low": np.float32(-0.5),
    "high": np.float32(0.5),
    "two": np.float32(2),
    "sizes": np.array([6, -1]),
    "pads": np.array([0, 0, 1, 2, 0, 0, 3, 0]),
    "none": np.empty(0, np.float32),
    "scales": np.array([1, 1, 2, 3], np.float32),
    "three": np.array([3], np.float32),
    "one": np.array([1], np.float32),
    "repeats": np.array([1, 3, 1, 1]),
    "c": np.array([0.5, 0.25, 2], np.float32),
    "c3": np.array([0.5, 0.25, 2], np.float32).reshape(3, 1, 1),
    "bias": random(4, seed=5),
}


def test_operands_that_begin_at_an_axis() -> None:
    """Every binary operator, and Add with each shape, in one model, compared with NumPy."""
    nodes, inputs, outputs, feeds, wanted = [], [], [], {}, []
    numpys = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "Sub": np.subtract,
              "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Add": np.add,
              "Less": np.less, "Greater": np.greater, "Equal": np.equal}  # fmt: skip
    kinds = {
        **dict.fromkeys(ARITHMETIC, (1, 1)),
        **dict.fromkeys(LOGIC, (9, 9)),
        "Less": (1, 9),
        "Greater": (1, 9),
        "Equal": (6, 9),
    }

    def value(kind: int, *shape: int, seed: int) -> np.ndarray:
        numbers = np.abs(random(*shape, seed=seed)) + 0.5
        return numbers if kind == 1 else (numbers > 1) if kind == 9 else numbers.astype(np.int32)

    for kind in (1, 9, 6):
        feeds[f"x{kind}"] = value(kind, 2, 3, 4, 5, seed=kind)
        inputs.append((f"x{kind}", kind, (2, 3, 4, 5)))
    for operator, (kind, made) in kinds.items():
        for number, (shape, axis) in enumerate(OPERANDS if operator == "Add" else OPERANDS[:2]):
            name, result = f"b{kind}_{number}", f"{operator}{number}"
            if name not in feeds:
                feeds[name] = value(kind, *shape, seed=number)
                inputs.append((name, kind, shape))
            more = {} if axis is None else {"axis": axis}
            names = [f"x{kind}", name]
            nodes.append(helper.make_node(operator, names, [result], broadcast=1, **more))
            outputs.append((result, made, (2, 3, 4, 5)))
            first = (4 - len(shape) if axis is None else axis) % 4
            wide = feeds[name].reshape(*shape, *[1] * (4 - first - len(shape)))
            wanted.append(numpys[operator](feeds[f"x{kind}"], wide))
    model = make_model(nodes, inputs, outputs, opset=6)
    got = InferenceSession(model, num_threads=1).run(None, feeds)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype
        # One rounding; powers of numbers up to 4 have a few more.
        np.testing.assert_allclose(one, other, rtol=1e-6)


def one_model(opset: int, column: int) -> onnx.ModelProto:
    """The forms of an opset, or all forms of opset 12 that replace them."""
    lines = [f"y_{name} = {form[column]}" for name, form in FORMS.items() if opset in (12, form[0])]
    heads = [f"{'int32' if name == 'Cast' else 'float'}[] y_{name}"
             for name, form in FORMS.items() if opset in (12, form[0])]  # fmt: skip
    inputs = "float[2, 3, 4, 5] x, float[3, 4] m"
    text = f"g ({inputs}) => ({', '.join(heads)}) {{ {' '.join(lines)} }}"
    model = parsed(text, opset)
    for item in model.graph.output:
        item.type.tensor_type.ClearField("shape")
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in CONSTANTS.items()
        if name in used
    )
    return model


def test_forms_that_later_opsets_changed() -> None:
    feeds = {"x": random(2, 3, 4, 5), "m": random(3, 4, seed=1)}
    peer = literal_session(one_model(12, 2))
    names = [f"y_{name}" for name in FORMS]
    wanted = dict(zip(names, peer.run(names, feeds), strict=True))
    for opset in sorted({form[0] for form in FORMS.values()}):
        session = InferenceSession(one_model(opset, 1), num_threads=1)
        of_opset = [f"y_{name}" for name, form in FORMS.items() if form[0] == opset]
        for name, got in zip(of_opset, session.run(of_opset, feeds), strict=True):
            assert got.dtype == wanted[name].dtype
            # Sums of up to nine numbers near 1, and a root.
            np.testing.assert_allclose(got, wanted[name], rtol=2e-6, atol=1e-6, err_msg=name)


def test_nodes_that_lose_an_attribute_or_an_input() -> None:
    graph = Graph(7, [], [], [], old_opset=1)
    graph.add_constant("sizes", np.array([1, 3]))
    names = ["x", "w", "r"]
    for operator in ("RNN", "GRU", "LSTM"):
        old = helper.make_node(operator, names, ["y"], hidden_size=4, output_sequence=1)
        assert renewed(old, graph) == [helper.make_node(operator, names, ["y"], hidden_size=4)]
    old = helper.make_node("Split", ["x", "sizes"], ["y", "z"], axis=1)
    new = helper.make_node("Split", ["x"], ["y", "z"], axis=1, split=[1, 3])
    assert renewed(old, graph) == [new]
    assert renewed(new, graph) is None


def refused(
    operator: str, inputs: list[str], opset: int = 6, **attributes: object
) -> onnx.ModelProto:
    node = helper.make_node(operator, inputs, ["y"], name="it", **attributes)
    given = [f32("x", 2, 3, 4, 5), f32("b", 2, 3)]
    return make_model([node], given, [("y", TensorProto.FLOAT, None)], opset=opset)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (refused("Add", ["x", "b"], broadcast=1, axis=3), ModelError, "not fit behind axis 3 of 4"),
        (refused("Add", ["x", "b"], broadcast=1, axis=1), ShapeError, "'it'.*do not fit"),
        (refused("Dropout", ["x"], is_test=0), UnsupportedOperatorError, "'it'.*for training"),
        (refused("GlobalLpPool", ["x"], 1, p=1.5), UnsupportedOperatorError, "'it'.*p is 1.5"),
        (refused("Cast", ["x"], 5, to="FLOAT99"), ModelError, "'it'.*no data type 'FLOAT99'"),
        (refused("Tile", ["x", "b", "b"], 5), UnsupportedOperatorError, "'it'.*'tiles' must be"),
    ],
)
def test_what_is_refused(model: onnx.ModelProto, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        import_onnx(model)

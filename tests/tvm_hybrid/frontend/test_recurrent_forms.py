"""LSTM, GRU and RNN compared with ONNX Runtime: activations, peepholes, lengths and more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import ModelError, UnsupportedOperatorError

from .models import OPSET, compare, f32, make_model, onnxruntime_run, random

pytestmark = pytest.mark.turns

STEPS, BATCH, INPUT, HIDDEN = 4, 3, 2, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _layer(
    op: str,
    lengths: str = "",
    peepholes: bool = False,
    outputs: tuple[str, ...] = ("y", "yh", "yc"),
    opset: int = OPSET,
    steps: int = STEPS,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, NDArray]]:
    """A model of one layer, and its feeds.

    Parameters
    ----------
    lengths
        Whether the sequences' lengths are "" (absent), "constant" or "fed".
    outputs
        Names of the outputs, "" for absent ones.
    """
    n = 2 if attributes.get("direction") == "bidirectional" else 1
    batch_first = attributes.get("layout", 0)
    rows = GATES[op] * HIDDEN
    constants = {
        "w": random(n, rows, INPUT, seed=1),
        "r": random(n, rows, HIDDEN, seed=2),
        "b": random(n, 2 * rows, seed=3),
        "p": random(n, 3 * HIDDEN, seed=4),
        "l": np.array([steps, 1, steps - 2], np.int32),
    }
    sizes = {"x": (steps, BATCH, INPUT), "h": (n, BATCH, HIDDEN), "c": (n, BATCH, HIDDEN)}
    sizes |= {"y": (steps, n, BATCH, HIDDEN), "yh": sizes["h"], "yc": sizes["h"]}
    if batch_first:
        sizes = {key: (BATCH, *(d for d in dims if d != BATCH)) for key, dims in sizes.items()}
    names = ["x", "w", "r", "b", "l" if lengths else "", "h"]
    if op == "LSTM":
        names += ["c", "p" if peepholes else ""]
    fed = [name for name in ("x", "h", "c") if name in names]
    feeds: dict[str, NDArray] = {key: random(*sizes[key], seed=7) for key in fed}
    inputs = [f32(name, *sizes[name]) for name in fed]
    if lengths == "fed":
        feeds["l"] = constants.pop("l")
        inputs.append(("l", TensorProto.INT32, (BATCH,)))
    made = list(outputs[: 3 if op == "LSTM" else 2])
    node = helper.make_node(op, names, made, hidden_size=HIDDEN, **attributes)
    declared = [f32(name, *sizes[name]) for name in made if name]
    return make_model([node], inputs, declared, constants, opset), feeds


_BOTH: dict[str, Any] = {"direction": "bidirectional"}
_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("RNN", {"direction": "reverse", "lengths": "fed", "activations": ["ScaledTanh"],
             "activation_alpha": [0.7], "activation_beta": [1.3]}),
    ("RNN", _BOTH | {"lengths": "constant", "activations": ["LeakyRelu", "Affine"], "clip": 0.5,
                     "activation_alpha": [0.1, 0.9], "activation_beta": [-0.1]}),
    ("GRU", _BOTH | {"lengths": "fed", "clip": 0.4, "opset": 7,
                     "activations": ["HardSigmoid", "Softsign", "Sigmoid", "Elu"],
                     "activation_alpha": [0.3, 0.6], "activation_beta": [0.45]}),
    ("GRU", {"linear_before_reset": 1, "lengths": "constant", "outputs": ("", "yh", ""),
             "activations": ["sigmoid", "leakyrelu"]}),
    ("LSTM", {"peepholes": True, "input_forget": 1, "clip": 0.8, "opset": 14}),
    ("LSTM", _BOTH | {"peepholes": True, "lengths": "fed", "clip": 0.5,
                      "activations": ["Sigmoid", "ThresholdedRelu", "Tanh"] * 2,
                      "activation_alpha": [0.2, 0.4]}),
    ("LSTM", {"direction": "reverse", "lengths": "constant", "outputs": ("", "", "yc"),
              "activations": ["Sigmoid", "Softplus", "Tanh"]}),
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize(("op", "form"), _FORMS)
def test_forms(op: str, form: dict[str, Any]) -> None:
    """One operator for each direction if their functions differ, else one for both."""
    model, feeds = _layer(op, **form)
    imported = compare(model, feeds, onnxruntime_run(model, feeds))
    both = form.get("direction") == "bidirectional"
    apart = both and len(form.get("activation_alpha", [])) > 1  # each direction has another alpha
    names = [name.name_hint for name in imported.mod.functions]
    assert sum(name.startswith("recurrent") for name in names) == (2 if apart else 1)


@pytest.mark.parametrize(
    ("op", "form"),
    [
        ("LSTM", _BOTH | {"lengths": "fed", "peepholes": True, "clip": 0.8}),
        ("GRU", {"linear_before_reset": 1, "outputs": ("y", "", "")}),
        ("GRU", {"direction": "reverse", "outputs": ("", "yh", "")}),
        ("RNN", _BOTH | {"activations": ["Relu", "Relu"]}),
    ],
)
def test_all_steps_are_one_kernel_behind_one_product(op: str, form: dict[str, Any]) -> None:
    model, feeds = _layer(op, **form)
    session = InferenceSession(model, num_threads=1)
    assert [each.op for each in session.explain().taken] == ["matmul + add", "recurrent"]
    for mine, theirs in zip(session.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-5, 1e-5)  # a few steps of numbers below 1


def _fed(
    model: onnx.ModelProto, feeds: dict[str, NDArray], names: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, NDArray]]:
    """The model with some initialisers as inputs, and its feeds."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    found = {each.name: each for each in changed.graph.initializer if each.name in names}
    arrays = {name: onnx.numpy_helper.to_array(each) for name, each in found.items()}
    for name, each in found.items():
        changed.graph.initializer.remove(each)
        declared = helper.make_tensor_value_info(name, each.data_type, arrays[name].shape)
        changed.graph.input.append(declared)
    return changed, {**feeds, **arrays}


def _of_type(
    model: onnx.ModelProto, feeds: dict[str, NDArray], kind: int
) -> tuple[onnx.ModelProto, dict[str, NDArray]]:
    """The model with all floats in a type; values are rounded to the type."""
    changed, dtype = onnx.ModelProto(), helper.tensor_dtype_to_np_dtype(kind)
    changed.CopyFrom(model)
    for each in changed.graph.initializer:
        array = onnx.numpy_helper.to_array(each)
        if array.dtype.kind == "f" or each.data_type == TensorProto.BFLOAT16:
            each.CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype), each.name))
    for item in (*changed.graph.input, *changed.graph.output):
        if item.type.tensor_type.elem_type != TensorProto.INT32:
            item.type.tensor_type.elem_type = kind
    rounded = {k: v if v.dtype == np.int32 else v.astype(dtype) for k, v in feeds.items()}
    return changed, rounded


WEIGHTS = ("w", "r", "b", "p")


@pytest.mark.sampled
@pytest.mark.parametrize("sizes", [(STEPS, BATCH), ("steps", "batch")])
@pytest.mark.parametrize(
    ("op", "form"),
    [
        ("LSTM", _BOTH | {"lengths": "fed", "peepholes": True, "clip": 0.8}),
        (
            "LSTM",
            _BOTH | {"activations": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Elu", "Tanh"]},
        ),
        ("GRU", {"linear_before_reset": 1, "outputs": ("y", "", "")}),
        ("GRU", {"direction": "reverse", "outputs": ("", "yh", "")}),
        ("RNN", _BOTH | {"activations": ["Relu", "Relu"]}),
    ],
)
def test_weights_that_are_fed(op: str, form: dict[str, Any], sizes: tuple[int | str, ...]) -> None:
    """One program packs the weights in every run."""
    model, feeds = _fed(*_layer(op, **form), WEIGHTS)
    for item, first in zip(model.graph.input[:2], (0, 1), strict=False):
        for axis, size in zip(range(first, 2), sizes[first:], strict=True):
            if isinstance(size, str):
                item.type.tensor_type.shape.dim[axis].dim_param = size
    session = InferenceSession(model, num_threads=1)
    taken = [each.op for each in session.explain().taken]
    assert len(session.programs) == 1
    assert taken.count("recurrent") == (2 if "Elu" in form.get("activations", ()) else 1)
    for scale in (1, 0.5):
        fed = {k: v if v.dtype == np.int32 else (v * scale).astype("f4") for k, v in feeds.items()}
        wanted = onnxruntime_run(model, fed)
        for mine, theirs in zip(session.run(None, fed), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, 1e-5, 1e-5)  # a few steps of small numbers


@pytest.mark.sampled
@pytest.mark.parametrize("fed", [(), WEIGHTS])
@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize(
    ("op", "form"),
    [
        ("LSTM", _BOTH | {"lengths": "fed", "peepholes": True, "clip": 0.8}),
        ("LSTM", {"activations": ["HardSigmoid", "Softplus", "Softsign"]}),
        ("GRU", {"linear_before_reset": 1, "outputs": ("y", "", "")}),
        ("GRU", _BOTH | {"outputs": ("", "yh", "")}),
        ("RNN", {"direction": "reverse"}),
    ],
)
def test_other_floats(op: str, form: dict[str, Any], kind: int, fed: tuple[str, ...]) -> None:
    """ONNX Runtime computes the numbers rounded to the type in float32."""
    made = _of_type(*_layer(op, opset=22, **form), kind)
    plain = _of_type(*made, TensorProto.FLOAT)
    model, feeds = _fed(*made, fed)
    session = InferenceSession(model, num_threads=1)
    [taken] = [each for each in session.explain().taken if each.op == "recurrent"]
    assert ("f64" in taken.kernel) == (kind == TensorProto.DOUBLE)
    # In 16 bits, the input parts and the result are rounded once, all below 4: an error of one ulp
    # in a gate gives at most one ulp in the four later states.
    eps = {TensorProto.DOUBLE: 1e-6, TensorProto.FLOAT16: 2**-11, TensorProto.BFLOAT16: 2**-8}[kind]
    for mine, theirs in zip(session.run(None, feeds), onnxruntime_run(*plain), strict=True):
        assert mine.dtype == helper.tensor_dtype_to_np_dtype(kind)
        np.testing.assert_allclose(mine.astype("f4"), theirs, 0, 4 * STEPS * eps)


@pytest.mark.parametrize("sizes", [(STEPS, BATCH), ("steps", "batch")])
@pytest.mark.parametrize("op", GATES)
def test_layers_behind_each_other(op: str, sizes: tuple[int | str, int | str]) -> None:
    """The second layer needs the rank of the first one's result, which the file lacks."""
    constants = {"shape": np.array([0, 0, 2 * HIDDEN], np.int64)}
    nodes = []
    for number, (x, inner) in enumerate((("x", INPUT), ("x0", 2 * HIDDEN))):
        weights = [f"w{number}", f"r{number}"]
        for name, columns in zip(weights, (inner, HIDDEN), strict=True):
            constants[name] = random(2, GATES[op] * HIDDEN, columns, seed=number)
        y = f"y{number}"
        nodes += [
            helper.make_node(op, [x, *weights], [y], hidden_size=HIDDEN, **_BOTH),
            helper.make_node("Transpose", [y], [f"t{number}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{number}", "shape"], [f"x{number}"]),
        ]
    inputs = [("x", TensorProto.FLOAT, (*sizes, INPUT))]
    model = make_model(nodes, inputs, [f32("x1", *sizes, 2 * HIDDEN)], constants)
    feeds = {"x": random(STEPS, BATCH, INPUT)}
    session = InferenceSession(model, num_threads=1)
    assert [each.op for each in session.explain().taken].count("recurrent") == 2
    (wanted,) = onnxruntime_run(model, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op: str) -> None:
    """ONNX Runtime lacks this layout: its result for the other layout is transposed."""
    form = _BOTH | {"lengths": "constant"}
    other, feeds = _layer(op, **form)
    wanted = onnxruntime_run(other, feeds)
    model, _ = _layer(op, layout=1, **form)
    turned = {name: value.swapaxes(0, 1) for name, value in feeds.items()}
    expected = [wanted[0].transpose(2, 0, 1, 3), *(value.swapaxes(0, 1) for value in wanted[1:])]
    compare(model, {key: value.copy() for key, value in turned.items()}, expected)


@pytest.mark.parametrize(("name", "rows"), [("r", 4 * HIDDEN - 1), ("p", 3 * HIDDEN + 1)])
def test_weights_that_do_not_fit_are_refused(name: str, rows: int) -> None:
    """They are refused before a kernel reads beyond them."""
    model, _ = _layer("LSTM", peepholes=True)
    [weight] = [each for each in model.graph.initializer if each.name == name]
    shape = (1, rows, HIDDEN) if name == "r" else (1, rows)
    weight.CopyFrom(onnx.numpy_helper.from_array(random(*shape), name))
    with pytest.raises((ModelError, UnsupportedOperatorError), match="shape"):
        InferenceSession(model)


def test_symbolic_sizes_before_opset_13() -> None:
    model, feeds = _layer("LSTM", opset=11)
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param, shape.dim[1].dim_param = "steps", "batch"
    compare(model, feeds, onnxruntime_run(model, feeds))

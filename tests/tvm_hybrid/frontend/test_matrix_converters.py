"""Determinants, EyeLike, BitCast and masks of Dropout."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper

from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import f32, make_model, random, run_imported
from .test_values import NEWEST, declared, one, run


def code_of(dtype: np.dtype) -> int:
    """ONNX's number of a type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16])
def test_determinants(dtype: str, size: int) -> None:
    """Compared with float64, including singular matrices."""
    x = (random(3, 2, size, size) / np.float32(size**0.5)).astype(dtype)
    x[1, 1, 0] = 0
    if size > 1:
        x[2, 0, 1] = 2 * x[2, 0, 0]
    model = one("Det", {"x": x}, opset=NEWEST)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", *declared("y", x[..., 0, 0])[1:])
    )
    (got,) = run(model, {"x": x})
    wanted = np.linalg.det(x.astype(np.float64))
    # Elimination with pivots is exact for a matrix whose elements differ by n unit times the
    # largest, times the growth of the pivots (below n except for constructed matrices). If the n
    # rows change by a share e, the determinant changes by at most n e times the product of their
    # lengths (Hadamard). NumPy's value has these errors, too, in float64.
    unit = np.finfo("float64" if dtype == "float64" else "float32").eps / 2
    lengths = np.linalg.norm(x.astype(np.float64), axis=-1)
    rows = np.maximum(lengths, np.abs(x.astype(np.float64)).max((-1, -2))[..., None])
    bound = 2 * (size**3 + 1) * unit * rows.prod(-1)
    if dtype == "float16":
        bound += np.finfo(dtype).eps * np.abs(wanted)
    assert got.dtype == dtype
    assert np.all(np.abs(got.astype(np.float64) - wanted) <= bound)
    assert got[1, 1] == 0


def test_determinants_of_special_matrices() -> None:
    """A permutation has its sign, NaN stays even beside zeros, and an empty matrix gives 1."""
    x = np.stack([np.eye(4)[[1, 2, 3, 0]], np.eye(4)[[1, 0, 3, 2]], np.eye(4)]).astype(np.float32)
    x[2, :, 1] = [0, 0, 0, np.nan]
    model = one("Det", {"x": x}, opset=NEWEST)
    del model.graph.output[0].type.tensor_type.shape.dim[1:]
    np.testing.assert_array_equal(run(model, {"x": x})[0], [-1, 1, np.nan])
    for shape in ((0, 0), (2, 0, 0)):
        empty = one("Det", {"x": np.zeros(shape, np.float32)}, opset=NEWEST)
        del empty.graph.output[0].type.tensor_type.shape.dim[-2:]
        (got,) = run(empty, {"x": np.zeros(shape, np.float32)})
        np.testing.assert_array_equal(got, np.ones(shape[:-2], np.float32))


def test_determinants_of_what_is_not_square() -> None:
    with pytest.raises(ModelError):
        import_onnx(make_model([helper.make_node("Det", ["x"], ["y"])], [f32("x", 2, 3)],
                               [("y", 1, None)]))  # fmt: skip


def test_ones_on_a_diagonal() -> None:
    """The result has the input's type or another one."""
    x = np.zeros((3, 5), np.int32)
    dtypes = [None, *map(np.dtype, ("bool", "float16", "bfloat16", "float64", "int8", "uint64"))]
    nodes, outputs, wanted = [], [], []
    for dtype, k in itertools.product(dtypes, (-4, -1, 0, 2)):
        code = {} if dtype is None else {"dtype": code_of(dtype)}
        nodes.append(helper.make_node("EyeLike", ["x"], [f"y{len(nodes)}"], k=k, **code))
        wanted.append(np.eye(3, 5, k).astype(dtype or np.int32))
        outputs.append(declared(nodes[-1].output[0], wanted[-1]))
    model = make_model(nodes, [declared("x", x)], outputs, opset=NEWEST)
    model.ir_version = onnx.IR_VERSION
    for got, exact in zip(run_imported(import_onnx(model), {"x": x}), wanted, strict=True):
        assert got.dtype == exact.dtype
        np.testing.assert_array_equal(got, exact)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "dtypes",
    [
        ("int8", "uint8"),
        ("int16", "uint16", "float16", "bfloat16"),
        ("int32", "uint32", "float32"),
        ("int64", "uint64", "float64"),
    ],
)
def test_bits_as_another_type(dtypes: tuple[str, ...]) -> None:
    """All bits are kept, including those of NaN; a bool is a byte."""
    size = np.dtype(dtypes[0]).itemsize
    raw = np.random.default_rng(0).integers(0, 256, (3, 7, size)).astype(np.uint8)
    for source in dtypes:
        x = raw.view(np.dtype(source))[..., 0]
        targets = [np.dtype(name) for name in dtypes if name != source]
        nodes = [
            helper.make_node("BitCast", ["x"], [target.name], to=code_of(target))
            for target in targets
        ]
        outputs = [declared(str(target), x.view(target)) for target in targets]
        model = make_model(nodes, [declared("x", x)], outputs, opset=NEWEST)
        model.ir_version = onnx.IR_VERSION
        for got, target in zip(run(model, {"x": x}), targets, strict=True):
            assert got.dtype == target and got.tobytes() == x.tobytes()


@pytest.mark.parametrize("dtypes", [("bool", "uint8"), ("int8", "bool")])
def test_bits_of_a_bool(dtypes: tuple[str, str]) -> None:
    x, target = np.array([0, 1, 1, 0, 1]).astype(dtypes[0]), np.dtype(dtypes[1])
    model = one("BitCast", {"x": x}, target, NEWEST, to=code_of(target))
    np.testing.assert_array_equal(run(model, {"x": x})[0], x.view(target))


@pytest.mark.parametrize("opset", [7, 10, 13])
def test_the_mask_of_dropout(opset: int) -> None:
    """The mask keeps everything; before opset 10 it has the input's type."""
    x = random(2, 3)
    mask = np.ones((2, 3), bool if opset >= 10 else np.float32)
    node = helper.make_node("Dropout", ["x"], ["y", "mask"])
    outputs = [f32("y", 2, 3), declared("mask", mask)]
    for got, wanted in zip(run(make_model([node], [f32("x", 2, 3)], outputs, opset=opset),
                               {"x": x}), (x, mask), strict=True):  # fmt: skip
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)

"""Names, shapes and types of a model's inputs and outputs."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import ml_dtypes
import msgspec
import numpy as np
from tvm import tirx

_ONNX_TYPE_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}
# Types of ml_dtypes that compiled models handle as integers: ints by value, floats by bits.
_STORED_TYPES = {
    **{"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"},
    **{name: "uint8" for name in _ONNX_TYPE_NAMES if name.startswith(("float8", "float4"))},
}


class TensorInfo(msgspec.Struct, frozen=True):
    """One input of a compiled model.

    Attributes
    ----------
    name : str
        Name in the model.
    shape : tuple
        Sizes. A dynamic size is its name, or an expression of other names, such as
        "past + sequence".
    dtype : str
        NumPy's or ml_dtypes' name of the element type.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape; None if it is dynamic."""
        return _static(self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be the tensor's value; dynamic sizes fit any size."""
        return shape == self.shape or shape_fits(self.shape, shape)

    @property
    def stored(self) -> TensorInfo:
        """The tensor as compiled code sees it; differs for types of 2, 4 and 8 bits."""
        return TensorInfo(self.name, self.shape, _STORED_TYPES.get(self.dtype, self.dtype))

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes; dynamic sizes count as 1."""
        sizes = (size if isinstance(size, int) else 1 for size in self.shape)
        return math.prod(sizes) * numpy_dtype(self.dtype).itemsize

    @property
    def type(self) -> str:
        """The type as ONNX Runtime writes it, such as "tensor(float)"."""
        return onnx_type(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class OutputInfo(msgspec.Struct, frozen=True):
    """One output of a compiled model.

    Attributes
    ----------
    name : str
        Name in the model.
    shape : tuple
        Sizes. A size that depends on the inputs' values is the model's name for it, or None without
        a name.
    dtype : str
        NumPy's name of the element type.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape; None if a size depends on the inputs' values."""
        return _static(self.shape)

    @property
    def nbytes(self) -> int | None:
        """Size of the tensor in bytes; None if it depends on the inputs' values."""
        shape = self.static_shape
        return None if shape is None else math.prod(shape) * numpy_dtype(self.dtype).itemsize

    @property
    def type(self) -> str:
        """The type as ONNX Runtime writes it, such as "tensor(float)"."""
        return onnx_type(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{_sizes(self.shape)}]"


class DynamicTensorInfo(msgspec.Struct, frozen=True):
    """An input or output as the model declares it, perhaps with unknown sizes.

    Attributes
    ----------
    name : str
        Name in the model.
    shape : tuple or None
        Each size is a number, the name of a symbolic dimension, or None if unknown. None if the
        rank is unknown.
    dtype : str or None
        NumPy's name of the element type; None if unknown, which only happens for outputs.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str | None

    @property
    def type(self) -> str | None:
        """The type as ONNX Runtime writes it."""
        return None if self.dtype is None else onnx_type(self.dtype)

    @property
    def is_dynamic(self) -> bool:
        """Whether a size is unknown."""
        return self.shape is None or not all(isinstance(size, int) for size in self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be the tensor's value."""
        return shape_fits(self.shape, shape)

    def __str__(self) -> str:
        known = ("...",) if self.shape is None else self.shape
        return f"{self.name}: {self.dtype}[{_sizes(known)}]"


class DeclaredInterface(msgspec.Struct, frozen=True):
    """The inputs and outputs that a model with dynamic sizes declares."""

    inputs: tuple[DynamicTensorInfo, ...]
    outputs: tuple[DynamicTensorInfo, ...]


InputInfo = TensorInfo | DynamicTensorInfo
Described = InputInfo | OutputInfo


def shape_fits(declared: Sequence[object] | None, shape: Sequence[int]) -> bool:
    """Whether a shape fits a declared one; dynamic sizes fit any size."""
    return declared is None or (
        len(shape) == len(declared)
        and all(
            found == size
            for found, size in zip(shape, declared, strict=True)
            if isinstance(size, int)
        )
    )


def _static(shape: tuple[int | str | None, ...]) -> tuple[int, ...] | None:
    sizes = tuple(size for size in shape if isinstance(size, int))
    return sizes if len(sizes) == len(shape) else None


def _sizes(shape: tuple[int | str | None, ...]) -> str:
    return ", ".join("?" if size is None else str(size) for size in shape)


def is_narrow(dtype: str) -> bool:
    """Whether callers and compiled code use different arrays for an element type."""
    return dtype in _STORED_TYPES


def to_stored(array: np.ndarray) -> np.ndarray:
    """Converts a caller's array to the type that compiled code uses."""
    wanted = _stored_type(array.dtype)
    if wanted is None:
        return array
    return array.astype(wanted) if "int" in array.dtype.name else array.view(wanted)


@functools.lru_cache(maxsize=64)
def _stored_type(dtype: np.dtype[Any]) -> str | None:
    """The type that compiled code uses instead; cached, as NumPy builds a type's name each time."""
    return _STORED_TYPES.get(dtype.name)


def from_stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """Converts an array of compiled code to the caller's element type."""
    wanted = numpy_dtype(dtype)
    return array.astype(wanted) if "int" in dtype else array.view(wanted)


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """NumPy's element type of this name, or that of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def onnx_type(dtype: str) -> str:
    """Formats an element type like ONNX Runtime, such as "tensor(float)"."""
    return f"tensor({_ONNX_TYPE_NAMES.get(dtype, dtype)})"


# Sizes as text: `batch`, `past + sequence`, `2 * rows`, as in models and manifests.
#
# A text is a sum, difference, product or quotient (rounded down) of names and numbers. It can be
# evaluated with numbers and with TVM's variables.


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
_SIGNS: tuple[tuple[type[Any], str], ...] = (
    (tirx.Add, "+"),
    (tirx.Sub, "-"),
    (tirx.Mul, "*"),
    (tirx.FloorDiv, "//"),
)
LONGEST = 200  # longest text, in characters, that can be an expression


def evaluate(text: str, sizes: Mapping[str, Any]) -> Any:
    """Evaluates a size for the given values of names.

    Raises
    ------
    KeyError
        If a name has no value.
    ZeroDivisionError
        If it divides by 0.
    """
    if text in sizes:
        return sizes[text]
    tree = _tree(text)
    if tree is None:
        raise KeyError(text)
    return _value(tree, sizes)


def names_in(text: str) -> frozenset[str]:
    """The names in an expression; the text itself if it is not an expression."""
    tree = _tree(text)
    if tree is None:
        return frozenset({text})
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def is_relation(text: str) -> bool:
    """Whether a text is an expression, and not just a name."""
    tree = _tree(text)
    return tree is not None and not isinstance(tree, ast.Name)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Replaces names in an expression by other names or by numbers as text."""
    tree = ast.parse(text.strip(), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)


@lru_cache(maxsize=1024)
def _tree(text: str) -> ast.expr | None:
    """Parses an expression; returns None for other texts."""
    if len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_size(tree) else None


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS and _is_size(node.left) and _is_size(node.right)
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Name)


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)
    return node.value


def text_of(size: Any) -> int | str | None:
    """A size as text, or a number unchanged; None if it is not a simple expression of variables."""
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    text = _text(size)
    return text[1:-1] if text is not None and text.startswith("(") else text


def _text(size: Any) -> str | None:
    if isinstance(size, tirx.IntImm):
        return str(int(size))
    if isinstance(size, tirx.Var):
        return str(size.name)
    for kind, sign in _SIGNS:
        if isinstance(size, kind):
            parts = _text(size.a), _text(size.b)
            return None if None in parts else f"({parts[0]} {sign} {parts[1]})"
    return None


def refuse_copies(what: object, name: str) -> NoReturn:
    """Refuses pickling and copying, also by `copy` and `multiprocessing`; says what to do."""
    raise TypeError(
        f"{type(what).__name__} cannot be pickled or copied: it holds machine code of this "
        f'process. Threads may share it; for another process export it, {name}.export("model.so"), '
        'and load it there, tvm_hybrid.load("model.so")'
    )

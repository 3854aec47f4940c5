"""Relax expressions that converters make and read, and the builder that receives them.

Converters of ONNX import this module as `ex`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from microkernels.base.tvm_compat.patches import order_symbols
from microkernels.vector.expressions import reinterpret
from relay_passes.ir.constants import tensor_of

T = TypeVar("T")
Expr: TypeAlias = Any  # a Relax expression
Place: TypeAlias = tuple[Expr, ...]  # indices of an element in a kernel
NODE_FACTS = ("node_number", "node_outputs", "node_opset", "node_narrow")
NODE_NUMBER, OUTPUTS, OPSET, NARROW_INPUTS = NODE_FACTS
"""Keys, among a node's attributes, of what else converters need to know. "Narrow" holds, by
position, the element types of inputs that the model declares to have 2, 4 or 8 bits."""
Attrs: TypeAlias = dict[str, Any]


class Inputs(list[Any]):
    """A node's inputs; reading an omitted input at the end gives None."""

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, int) and item >= len(self):
            return None
        return super().__getitem__(item)


Converter = Callable[[Inputs, Attrs], Any]

_builder: ContextVar[relax.BlockBuilder] = ContextVar("builder")
_made_once: ContextVar[dict[Hashable, Any]] = ContextVar("made_once")

# Importing a model gives an equal module in every process.
order_symbols()


@contextmanager
def writing_to(builder: relax.BlockBuilder) -> Iterator[None]:
    """Sends expressions to the function that this builder makes, inside the `with` block."""
    token, memory = _builder.set(builder), _made_once.set({})
    try:
        yield
    finally:
        _builder.reset(token)
        _made_once.reset(memory)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Calls `make` once per key and function, and returns its result each time."""
    made = _made_once.get()
    if key not in made:
        made[key] = make()
    found: T = made[key]
    return found


def current_builder() -> relax.BlockBuilder:
    """The builder that receives expressions."""
    return _builder.get()


def normalize(expr: Expr) -> Expr:
    """An expression with its type; calls inside it are bound to variables, each call once."""
    return _builder.get().normalize(expr)


def emit(expr: Expr, name: str = "") -> Expr:
    """Binds an expression to a new variable."""
    return _builder.get().emit(expr, name)


def emit_te(function: Callable[..., Any], *args: Any, **kwargs: Any) -> relax.Var:
    """Binds the results of a kernel, written in TE, to a new variable."""
    return _builder.get().emit_te(function, *args, **kwargs)


def emit_each(
    name: str, shape: Sequence[Any], element: Callable[..., Any], *args: Any, hint: str, **own: Any
) -> relax.Var:
    """A tensor whose elements are computed from their indices, in a kernel named by `hint`.

    Parameters
    ----------
    element
        A function of an element's indices, a tuple, and of the kernel's own versions of `args`
        (tensors and sizes); it returns the element.
    own
        Attributes of the kernel.
    """

    def compute(sizes: list[Any], *given: Any) -> te.Tensor:
        return te.compute(sizes, lambda *place: element(place, *given), name=name)

    named = {"primfunc_name_hint": hint, "primfunc_attrs": own}
    return emit_te(compute, list(shape), *args, **named)


def match_cast(expr: Expr, found: relax.Type) -> relax.Var:
    """A variable for a value; the program checks that the value has this type."""
    return _builder.get().match_cast(expr, found)


def constant(value: Any) -> np.ndarray | None:
    """The array of a constant expression; None for anything else."""
    return value.value.numpy() if isinstance(value, GenericConst) else None


def known_array(value: Any, otherwise: str) -> np.ndarray:
    """The array of a constant expression; raises ValueError(otherwise) for anything else."""
    array = constant(value)
    if array is None:
        raise ValueError(otherwise)
    return array


def static_dims(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor expression; None if it is not static."""
    return static_shape_of(getattr(value, "ty", None))


def static_shape_of(found: Any) -> tuple[int, ...] | None:
    """The shape in a tensor type; None if it is no tensor type or not static."""
    if not isinstance(found, relax.TensorType) or not isinstance(found.shape, relax.ShapeExpr):
        return None
    dims: list[Any] = [getattr(dim, "value", None) for dim in found.shape.values]
    return None if None in dims else tuple(dims)


def known_dims(value: Any) -> tuple[int, ...]:
    """The static shape of a tensor expression; ValueError if the shape is not static."""
    dims = static_dims(value)
    if dims is None:
        raise ValueError("the shape of an input is not static")
    return dims


def rank_of(value: Any) -> int:
    """The number of dimensions of a tensor, static or dynamic; ValueError if it is not known."""
    rank = int(getattr(getattr(value, "ty", None), "ndim", -1))
    if rank < 0:
        raise ValueError("the rank of an input is not known")
    return rank


def dtype_of(value: Expr) -> str:
    """The dtype of a tensor expression."""
    return str(value.ty.dtype)


def number(like: Expr, value: float) -> GenericConst:
    """A scalar constant with the dtype of the expression `like`."""
    return literal(np.array(value, dtype_of(like)))


def literal(array: np.ndarray) -> GenericConst:
    """A constant of exactly the array's dtype; relax.const would turn int64 into int32."""
    tensor = tensor_of(array)
    if tensor is None:
        tensor = tvm.runtime.tensor(np.asarray(array, order="C"))
    return relax.const(tensor)


# Bits of a type, and the bits of its infinity.
_BITS = {
    "float16": (16, 0x7C00),
    "bfloat16": (16, 0x7F80),
    "float32": (32, 0x7F800000),
    "float64": (64, 0x7FF0000000000000),
}


def is_nan(value: Expr) -> Expr:
    """Whether an element in a kernel is NaN, tested by its bits: TVM assumes that x == x.

    False for types without NaN.
    """
    dtype = str(value.ty.dtype)
    if dtype not in _BITS:
        return tirx.const(False, "bool")
    bits, infinity = _BITS[dtype]
    kind = f"uint{bits}"
    positive = reinterpret(kind, value) & tirx.const((1 << (bits - 1)) - 1, kind)
    return positive > tirx.const(infinity, kind)


def reshaped(value: Expr, shape: Sequence[int]) -> Expr:
    """Reshapes a value; a constant stays a constant."""
    value = normalize(value)
    if static_dims(value) == tuple(shape):
        return value
    array = constant(value)
    if array is not None:
        return literal(array.reshape(tuple(shape)))
    return normalize(relax.op.reshape(value, tuple(shape)))


def sliced(value: Expr, axis: int, first: int, last: int) -> Expr:
    """Slices a value along an axis; a constant stays a constant."""
    array = constant(value)
    if array is not None:
        return literal(array[(slice(None),) * axis + (slice(first, last),)])
    return normalize(relax.op.strided_slice(value, [axis], [first], [last]))


def cast(value: Expr, dtype: str) -> Expr:
    """Casts a value; a constant stays a constant."""
    value = normalize(value)
    if dtype_of(value) == dtype:
        return value
    array = constant(value)
    if array is not None:
        return literal(array.astype(dtype))
    return normalize(relax.op.astype(value, dtype))

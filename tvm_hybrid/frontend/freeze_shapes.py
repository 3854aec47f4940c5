"""Gives every dimension of every input a number.

x: float32[batch, seq]    shapes={"x": (1, 128)}              ->  x: float32[1, 128]
y: float32[batch, 3]      shapes={"batch": 1, "seq": 128}     ->  y: float32[1, 3]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index as as_index
from typing import Any, SupportsIndex, cast

from onnx import TensorShapeProto, TypeProto, helper

from microkernels.base.errors import Argument, ShapeError

from ..runtime.size_text import evaluate, is_relation, names_in, renamed
from .graph import Graph
from .open_sizes import legal_names

MAX_DIM = 2**31 - 1
MAX_ELEMENTS = 2**36

Shapes = Mapping[str, int | Sequence[int | None]]
Dim = int | str | None


@dataclass(frozen=True)
class _Input:
    """An input and its dimensions as declared: a number, a symbol, or None where unknown.

    `dims` itself is None if the model does not even tell the rank.
    """

    name: str
    dims: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.name!r} (of unknown rank)"
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"{self.name!r} [{dims}]"


def freeze_shapes(
    graph: Graph, shapes: Shapes | None, keep_open: bool = False
) -> dict[str, tuple[int | str, ...]]:
    """Replaces the symbolic and unknown dimensions of the graph's inputs by numbers, in place.

    Parameters
    ----------
    shapes
        By input name the whole shape (None keeps the model's number), or by symbolic dimension
        name its value. A symbol that one input's shape gives a value holds for every input.
    keep_open
        Dimensions without a value keep their names, made identifiers, or get one of their input.

    Returns
    -------
    dict
        The sizes of the inputs that have open ones: numbers, names, and expressions of names.

    Raises
    ------
    ShapeError
        A dimension is left without a value, a value contradicts the model or another value or is
        no positive integer, or a name is unknown.
    """
    resolved, values = _resolved(graph, shapes)
    if keep_open:
        return _keep_open(graph, resolved, values)
    for item, dims in resolved.items():
        numbers = _numbers(item, dims)
        type_proto = helper.make_tensor_type_proto(graph.elem_type(item.name), numbers)
        graph.types[item.name] = type_proto
    return {}


def open_sizes(graph: Graph, shapes: Shapes) -> tuple[dict[str, tuple[Dim, ...]], dict[str, int]]:
    """The inputs' dimensions with those numbers that are given, and the names' numbers.

    Raises
    ------
    ShapeError
        As `freeze_shapes`, but for dimensions without a value.
    """
    resolved, values = _resolved(graph, shapes)
    return {item.name: tuple(dims) for item, dims in resolved.items()}, values


def _resolved(
    graph: Graph, shapes: Shapes | None
) -> tuple[dict[_Input, list[Dim]], dict[str, int]]:
    """The inputs' dimensions, as far as they have numbers, and the numbers of names."""
    inputs = [_declared(item.name, graph) for item in graph.inputs]
    by_name = {item.name: item for item in inputs}
    symbols = {dim for item in inputs for dim in item.dims or () if isinstance(dim, str)}
    values: dict[str, int] = {}
    sources: dict[str, str | Argument] = {}
    given: dict[str, list[int | None]] = {}

    def bind(symbol: str, value: int, source: str | Argument) -> None:
        if values.setdefault(symbol, value) != value:
            raise ShapeError(
                f"dimension {symbol!r} is {values[symbol]} by ",
                sources[symbol],
                f" but {value} by ",
                source,
                "; give one value",
                argument="shapes",
            )
        sources.setdefault(symbol, source)

    for key, value in (shapes or {}).items():
        if key in by_name:
            given[key] = _check_shape(by_name[key], value)
            for symbol, dim in zip(by_name[key].dims or (), given[key], strict=False):
                if isinstance(symbol, str) and dim is not None:
                    bind(symbol, dim, f"the shape of {key!r}")
        elif key in symbols:
            where = Argument("shapes", key, is_size=True)
            bind(key, _check_dim(value, where), where)
        else:
            raise ShapeError(Argument("shapes"), _unknown_name(key, graph, inputs, symbols))
    return {item: _resolve(item, given.get(item.name), values) for item in inputs}, values


def _keep_open(
    graph: Graph, resolved: dict[_Input, list[Dim]], values: dict[str, int]
) -> dict[str, tuple[int | str, ...]]:
    """Gives open dimensions names that are identifiers, and the graph their names."""
    texts = [dim for dims in resolved.values() for dim in dims if isinstance(dim, str)]
    plain = [text for text in texts if not is_relation(text)]
    # What relates dimensions that no input has alone is a name of its own.
    known = {*plain, *values}
    related = {text for text in texts if is_relation(text) and names_in(text) <= known}
    legal = legal_names([text for text in texts if text not in related])
    found: dict[str, tuple[int | str, ...]] = {}
    for item, dims in resolved.items():
        sizes: list[int | str] = []
        for position, dim in enumerate(dims):
            if dim is None:
                own = f"{item.name}_{position}"
                dim = legal_names([own], tuple(legal.values()))[own]
                legal[dim] = dim
            elif isinstance(dim, str):
                names: dict[str, Any] = {**legal, **{name: str(n) for name, n in values.items()}}
                dim = renamed(dim, names) if dim in related else legal[dim]
                number = evaluate(dim, {}) if not names_in(dim) else None
                dim = dim if number is None else number
            sizes.append(dim)
        numbers = [size for size in sizes if isinstance(size, int)]
        _numbers(item, list(numbers))
        type_proto = helper.make_tensor_type_proto(graph.elem_type(item.name), sizes)
        graph.types[item.name] = type_proto
        if len(numbers) < len(sizes):
            found[item.name] = tuple(sizes)
    return found


def declared_dims(type_proto: TypeProto) -> tuple[Dim, ...] | None:
    """A tensor type's dimensions as declared: numbers, symbols, None; None if no rank is told."""
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(_declared_dim(dim) for dim in tensor.shape.dim)


def _declared(name: str, graph: Graph) -> _Input:
    return _Input(name, declared_dims(graph.types[name]))


def _declared_dim(dim: TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    # Exporters write "?" or "" for dimensions that have nothing to do with each other.
    return None if dim.dim_param.strip() in ("", "?") else dim.dim_param


def _check_dim(value: object, where: Argument) -> int:
    try:
        number = as_index(cast(SupportsIndex, value))
    except TypeError:
        raise ShapeError(where, f" is {value!r}; a dimension is an integer") from None
    if isinstance(value, bool) or not 0 <= number <= MAX_DIM:
        raise ShapeError(where, f" is {value!r}; a dimension is an integer from 0 to {MAX_DIM}")
    return number


def _check_shape(item: _Input, value: object) -> list[int | None]:
    where = Argument("shapes", item.name)
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise ShapeError(
            where, f" is {value!r}; the shape of input {item} is a tuple of {_rank(item)}integers"
        )
    dims = [
        None if dim is None else _check_dim(dim, replace(where, position=position))
        for position, dim in enumerate(value)
    ]
    if item.dims is not None:
        if len(dims) != len(item.dims):
            raise ShapeError(
                where, f" has {len(dims)} dimensions, but input {item} has {len(item.dims)}"
            )
        for position, (fixed, dim) in enumerate(zip(item.dims, dims, strict=True)):
            if isinstance(fixed, int) and dim not in (None, fixed):
                raise ShapeError(
                    replace(where, position=position),
                    f" is {dim}, but the model fixes dimension {position} of input {item} to "
                    f"{fixed}",
                )
    return dims


def _rank(item: _Input) -> str:
    return "" if item.dims is None else f"{len(item.dims)} "


def _resolve(item: _Input, given: list[int | None] | None, values: dict[str, int]) -> list[Dim]:
    """The dimensions, as far as they have numbers."""
    if item.dims is None and given is None:
        raise ShapeError(
            f"input {item} has no shape in the model; give all its sizes by ",
            Argument("shapes", item.name),
        )
    declared: Sequence[Dim] = item.dims if item.dims is not None else [None] * len(given or ())
    dims: list[Dim] = list(declared)
    for position, dim in enumerate(declared):
        if isinstance(dim, str):
            related = is_relation(dim) and names_in(dim) <= values.keys()
            dims[position] = values.get(dim, evaluate(dim, values) if related else dim)
        if given is not None and given[position] is not None:
            dims[position] = given[position]
    return dims


def _numbers(item: _Input, dims: list[Dim]) -> list[int]:
    """The dimensions, which all must have numbers."""
    numbers = [dim for dim in dims if isinstance(dim, int)]
    if len(numbers) < len(dims):
        position, dim = next((p, d) for p, d in enumerate(dims) if not isinstance(d, int))
        named = f"{dim!r} (dimension {position})" if dim else f"dimension {position}"
        example = tuple(d if isinstance(d, int) else 1 for d in dims)
        also = (" or ", Argument("shapes", value={dim: 1})) if dim else ()
        raise ShapeError(
            f"input {item}: {named} has no value; give one, for example ",
            Argument("shapes", value={item.name: example}),
            *also,
        )
    elements = 1
    for number in numbers:
        elements *= max(number, 1)  # NumPy's limit disregards zeros
    if elements > MAX_ELEMENTS:
        raise ShapeError(f"input {item.name!r} of shape {tuple(numbers)} has too many elements")
    return numbers


def _unknown_name(key: object, graph: Graph, inputs: list[_Input], symbols: set[str]) -> str:
    if key in graph.constants:
        return f" names {key!r}, which is an initializer (a constant), not an input"
    text = f" names {key!r}; the model's inputs are {', '.join(map(str, inputs)) or 'none'}"
    return text + (f" and its dimensions {', '.join(sorted(symbols))}" if symbols else "")

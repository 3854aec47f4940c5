"""Gives every dimension of every input a number, or keeps it dynamic.

x: float32[batch, seq]    shapes={"x": (1, 128)}              ->  x: float32[1, 128]
y: float32[batch, 3]      shapes={"batch": 1, "seq": 128}     ->  y: float32[1, 3]
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from operator import index as as_index
from typing import Any, NamedTuple, SupportsIndex, cast

from onnx import TypeProto
from tvm import tirx

from microkernels.base.errors import Argument, ShapeError
from tir_schedules.generic.expressions import variables_of

from ....runtime.tensors import evaluate, is_relation, names_in, renamed, text_of
from ...expressions import Expr
from .graph import Graph
from .sizes import simplified

MAX_DIM = 2**31 - 1
MAX_ELEMENTS = 2**36

Shapes = Mapping[str, int | Sequence[int | None]]
Dim = int | str | None


class Input(NamedTuple):
    """An input and its declared dimensions: numbers, symbols, or None for unknown ones.

    `dims` itself is None if the model does not declare the rank.
    """

    name: str
    dims: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.name!r} (of unknown rank)"
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"{self.name!r} [{dims}]"


def freeze_shapes(
    graph: Graph, shapes: Shapes | None, keep_dynamic: bool = False
) -> dict[str, tuple[int | str, ...]]:
    """Replaces the symbolic and unknown dimensions of the graph's inputs by numbers, in place.

    Parameters
    ----------
    shapes
        Input name -> the whole shape (None keeps the model's number), or name of a symbolic
        dimension -> its value. A symbol that gets its value by an input's shape has it everywhere.
    keep_dynamic
        Dimensions without a value stay dynamic. They keep their names, made identifiers; those
        without a name are named after their input.

    Returns
    -------
    dict
        The sizes of inputs with dynamic dimensions: numbers, names, and expressions of names.

    Raises
    ------
    ShapeError
        A dimension has no value, a value contradicts the model or another value or is no positive
        integer, or a name is unknown.
    """
    resolved, values = dynamic_sizes(graph, shapes)
    if not keep_dynamic:
        for item, dims in resolved.items():
            _check_numbers(item, dims)
    texts = [dim for dims in resolved.values() for dim in dims if isinstance(dim, str)]
    plain = [text for text in texts if not is_relation(text)]
    # Text such as "a + b" is an expression only if each name in it is a dimension; else a name.
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
        # NumPy counts elements this way, ignoring zeros.
        if math.prod(max(number, 1) for number in numbers) > MAX_ELEMENTS:
            raise ShapeError(f"input {item.name!r} of shape {tuple(numbers)} has too many elements")
        graph.declare(item.name, graph.elem_type(item.name), sizes)
        if len(numbers) < len(sizes):
            found[item.name] = tuple(sizes)
    return found


def dynamic_sizes(
    graph: Graph, shapes: Shapes | None
) -> tuple[dict[Input, list[Dim]], dict[str, int]]:
    """The inputs' dimensions with known values filled in, and the values by name.

    Raises
    ------
    ShapeError
        As `freeze_shapes`, but for dimensions without a value.
    """
    names = [item.name for item in graph.inputs]
    inputs = [Input(name, declared_dims(graph.types[name])) for name in names]
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
            text = f"names {key!r}; the model's inputs are {', '.join(map(str, inputs)) or 'none'}"
            text += f" and its dimensions {', '.join(sorted(symbols))}" if symbols else ""
            if key in graph.constants:
                text = f"names {key!r}, which is an initializer (a constant), not an input"
            raise ShapeError(Argument("shapes"), f" {text}")
    resolved: dict[Input, list[Dim]] = {}
    for item in inputs:
        own = given.get(item.name)
        if item.dims is None and own is None:
            raise ShapeError(
                f"input {item} has no shape in the model; give all its sizes by ",
                Argument("shapes", item.name),
            )
        dims: list[Dim] = list(own or [None] * len(item.dims or ()))
        for position, size in enumerate(item.dims or ()):
            if isinstance(size, str) and dims[position] is None:
                related = is_relation(size) and names_in(size) <= values.keys()
                size = values.get(size, evaluate(size, values) if related else size)
            dims[position] = size if dims[position] is None else dims[position]
        resolved[item] = dims
    return resolved, values


def declared_dims(type_proto: TypeProto) -> tuple[Dim, ...] | None:
    """A tensor type's declared dimensions: numbers, symbols, None; None if the rank is missing."""
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        # Exporters write "?" or "" for unrelated dimensions.
        symbol = None if dim.dim_param.strip() in ("", "?") else dim.dim_param
        is_number = dim.HasField("dim_value") and dim.dim_value >= 0
        dims.append(dim.dim_value if is_number else symbol)
    return tuple(dims)


def _check_dim(value: object, where: Argument) -> int:
    try:
        number = as_index(cast(SupportsIndex, value))
    except TypeError:
        raise ShapeError(where, f" is {value!r}; a dimension is an integer") from None
    if isinstance(value, bool) or not 0 <= number <= MAX_DIM:
        raise ShapeError(where, f" is {value!r}; a dimension is an integer from 0 to {MAX_DIM}")
    return number


def _check_shape(item: Input, value: object) -> list[int | None]:
    where = Argument("shapes", item.name)
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        rank = "" if item.dims is None else f"{len(item.dims)} "
        raise ShapeError(
            where, f" is {value!r}; the shape of input {item} is a tuple of {rank}integers"
        )
    dims = [
        None if dim is None else _check_dim(dim, replace(where, position=position))
        for position, dim in enumerate(value)
    ]
    if item.dims is not None and len(dims) != len(item.dims):
        raise ShapeError(
            where, f" has {len(dims)} dimensions, but input {item} has {len(item.dims)}"
        )
    for position, (fixed, dim) in enumerate(zip(item.dims or (), dims, strict=False)):
        if isinstance(fixed, int) and dim not in (None, fixed):
            raise ShapeError(
                replace(where, position=position),
                f" is {dim}, but the model fixes dimension {position} of input {item} to {fixed}",
            )
    return dims


def _check_numbers(item: Input, dims: list[Dim]) -> None:
    """Refuses an input that has a dimension without a number."""
    for position, dim in enumerate(dims):
        if not isinstance(dim, int):
            named = f"{dim!r} (dimension {position})" if dim else f"dimension {position}"
            example = tuple(d if isinstance(d, int) else 1 for d in dims)
            also = (" or ", Argument("shapes", value={dim: 1})) if dim else ()
            raise ShapeError(
                f"input {item}: {named} has no value; give one, for example ",
                Argument("shapes", value={item.name: example}),
                *also,
            )


# Dynamic sizes of a model's inputs, as symbols of Relax.
#
#     x: float32[batch, seq]                    ->  x: R.Tensor((batch, seq))
#     mask: float32[batch, past + seq]          ->  mask: R.Tensor((batch, past + seq))
#     y: float32[?, 3]                          ->  y: R.Tensor((y_0, 3))
#
# Dimensions of one name share a variable. DynamicSizes also notes what a program assumes: that two
# sizes are equal, and limits, such as the length of a table of positions.


Size = int | str


def legal_names(names: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Distinct identifiers for the names of dimensions, none of them in `taken`."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain[:1].isalpha() or plain[:1] == "_" else f"n_{plain}"
        legal, count = plain, 1
        while legal in {*found.values(), *taken}:
            legal, count = f"{plain}_{count}", count + 1
        found[name] = legal
    return found


@dataclass
class DynamicSizes:
    """The dynamic sizes of one model while it is imported.

    Attributes
    ----------
    inputs : dict
        Input -> its sizes: numbers, names, and sums and products of names, as text.
    symbols : dict
        Name -> variable.
    limits : dict
        Size as text -> the largest value that it may have.
    found : int
        Number of sizes so far that depend on data.
    lengths : dict
        Name of a size that is a choice between sizes -> number of sizes in the choice, with nested
        choices expanded.
    """

    inputs: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    symbols: dict[str, tirx.Var] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    found: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: dict[str, tuple[Size, ...]]) -> DynamicSizes:
        """Makes a variable for each name."""
        texts = [size for sizes in inputs.values() for size in sizes if isinstance(size, str)]
        names = dict.fromkeys(text for text in texts if not is_relation(text))
        return cls(dict(inputs), {name: tirx.Var(name, "int64") for name in names})

    def shape(self, name: str) -> list[Expr | int]:
        """The shape of an input."""
        return [
            size if isinstance(size, int) else evaluate(size, self.symbols)
            for size in self.inputs[name]
        ]

    def relate(self, name: str, text: str) -> None:
        """Replaces the size `name` by an expression of others, given as text, for a new import."""
        del self.symbols[name]
        for key, sizes in self.inputs.items():
            self.inputs[key] = tuple(_replaced(size, name, text) for size in sizes)
        self.limits.clear()
        self.lengths.clear()
        self.found = 0

    def unite(self, *sizes: Expr) -> None:
        """Raises a RelatedSizesError if one of equal sizes is a symbol that another can replace."""
        known = {*self.symbols.values()}
        for one, other in itertools.permutations(sizes):
            if isinstance(one, tirx.Var) and one in known:
                text = text_of(simplified(other))
                if text is not None and variables_of(simplified(other)) <= known - {one}:
                    raise RelatedSizesError(str(one.name), str(text))

    def limit(self, size: Expr, most: int) -> bool:
        """Notes an upper bound of a size; False if the size does not follow from the inputs."""
        known = self.knows(size)
        if known:
            text = str(text_of(size))
            self.limits[text] = min(most, self.limits.get(text, most))
        return known

    def knows(self, size: Expr) -> bool:
        """Whether a size is dynamic, and follows from sizes of inputs."""
        found = variables_of(size)
        return bool(found) and found <= {*self.symbols.values()}


class RelatedSizesError(Exception):
    """Two sizes must be equal, and one can replace the other: the import starts again."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} = {text}")
        self.name = name
        self.text = text


_current: ContextVar[DynamicSizes | None] = ContextVar("dynamic sizes", default=None)


@contextmanager
def keeping(sizes: DynamicSizes) -> Iterator[None]:
    """Makes `current_sizes` return these sizes inside the `with` block."""
    token = _current.set(sizes)
    try:
        yield
    finally:
        _current.reset(token)


def current_sizes() -> DynamicSizes:
    """The sizes of the model that is being imported; an empty object outside an import."""
    return _current.get() or DynamicSizes()


def new_size(length: int = 1) -> tirx.Var:
    """A variable with a new name, for a size that depends on data or is a choice.

    The name is unique because passes treat sizes of one name as one size. `length` is the entry in
    `DynamicSizes.lengths`.
    """
    sizes = current_sizes()
    while True:
        sizes.found += 1
        name = f"found_{sizes.found}"
        if name not in sizes.symbols:
            sizes.lengths[name] = length
            return tirx.Var(name, "int64")


def length_of(*sizes: Expr) -> int:
    """The number of sizes in some expressions, with choices expanded."""
    lengths = current_sizes().lengths
    return sum(lengths.get(var.name, 1) for size in sizes for var in variables_of(size))


def _replaced(size: Size, name: str, text: str) -> Size:
    if not isinstance(size, str) or name not in names_in(size):
        return size
    text = text if size == name else renamed(size, {name: f"({text})"})
    return text if names_in(text) else int(evaluate(text, {}))

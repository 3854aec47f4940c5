"""ProgramGraph: the kernels that a compiled model calls, and the tensors between them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from tvm import DataType, ir, relax

from microkernels.base.errors import ArtifactError

INPUT, WEIGHT, VALUE = "input", "weight", "value"
_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
# These operators give existing memory another name or another shape.
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.flatten", "relax.memory.ensure_zero_offset")


class Value(msgspec.Struct, frozen=True):
    """A tensor of a program.

    Attributes
    ----------
    name : str
        Its variable; "" for a weight.
    shape : tuple of int or str
        Dynamic sizes are text.
    dtype : str
        Type of its elements.
    nbytes : int
        Size in bytes; 0 if the shape is dynamic.
    kind : str
        "input" of the model, "weight" (a constant, as kernels read it), or "value".
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    nbytes: int
    kind: str


class KernelCall(msgspec.Struct, frozen=True):
    """A call of a kernel or of a function of the runtime.

    Attributes
    ----------
    node : str
        The variable that holds the result.
    function : str
        The kernel's name in the compiled module.
    reads, writes : tuple of int
        Numbers of values, as often as they are arguments or results. If several kernels write to
        one memory, each writes a value of its own.
    updates : tuple of int
        The values in `reads` whose memory a result reuses, after a part of it is overwritten.
    origins : tuple of str
        The ONNX nodes that the call comes from, each with its operator: "conv1 (Conv)".
    """

    node: str
    function: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    updates: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()


class ProgramGraph(msgspec.Struct, frozen=True):
    """The calls of a lowered module's `main`.

    Attributes
    ----------
    values : tuple of Value
        All tensors.
    calls : tuple of KernelCall
        In the order of execution.
    inputs, outputs : tuple of int
        Numbers of the values that are inputs and outputs, in the program's order.
    """

    values: tuple[Value, ...]
    calls: tuple[KernelCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def named_graph(
    main: relax.Function, bindings: Sequence[relax.VarBinding | relax.MatchCast]
) -> tuple[ProgramGraph, list[list[str]]]:
    """The graph, and for each value the names of variables that are bound to it or to a view of it.

    A view counts as the tensor that it views. A branch or a loop counts as one call of a function.

    Parameters
    ----------
    main : relax.Function
        A function that calls kernels (R.call_tir) and is not lowered further.
    bindings : sequence of relax.VarBinding or relax.MatchCast
        The bindings of all its blocks.
    """
    reader = _Reader()
    inputs = tuple(number for each in main.params for number in reader.declare(each, INPUT))
    for binding in bindings:
        reader.read(binding)
    outputs = tuple(reader.numbers(main.body.body))
    graph = ProgramGraph(tuple(reader.values), tuple(reader.calls), inputs, outputs)
    return graph, reader.names


class _Reader:
    """Builds the graph from the bindings of a function."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.names: list[list[str]] = []
        self.calls: list[KernelCall] = []
        self._known: dict[int, tuple[int, ...]] = {}

    def declare(self, expression: Any, kind: str, name: str = "") -> tuple[int, ...]:
        """Adds values for an expression, one for each tensor in it, and remembers them."""
        first = len(self.values)
        name = name or str(getattr(expression, "name", ""))
        self.values += (_value(name, each, kind) for each in _tensors(expression.ty))
        self.names += ([name] for _ in range(first, len(self.values)))
        found = tuple(range(first, len(self.values)))
        self._known[_key(expression)] = found
        return found

    def numbers(self, expression: Any) -> Iterator[int]:
        """The values that an expression reads."""
        if isinstance(expression, relax.Tuple):
            for field in expression.fields:
                yield from self.numbers(field)
        elif isinstance(expression, relax.TupleGetItem):
            fields = list(self.numbers(expression.tuple_value))
            index = int(expression.index)
            yield from fields[index : index + 1]
        elif isinstance(expression, ir.GenericConst):
            known = self._known.get(_key(expression))
            yield from known if known is not None else self.declare(expression, WEIGHT)
        elif isinstance(expression, relax.Var):
            yield from self._known.get(_key(expression), ())

    def _also(self, var: Any, numbers: tuple[int, ...]) -> None:
        """Binds a variable to values that exist already."""
        self._known[_key(var)] = numbers
        if len(numbers) == 1:
            self.names[numbers[0]].append(str(var.name))

    def read(self, binding: Any) -> None:
        """Adds what a binding computes to the graph."""
        value, var = binding.value, binding.var
        if not isinstance(value, relax.Call | relax.If):
            self._also(var, tuple(self.numbers(value)))
            return
        operator = str(getattr(getattr(value, "op", None), "name", ""))
        if operator in _VIEWS:
            self._also(var, tuple(self.numbers(value.args[0])))
            return
        arguments = [value.cond] if isinstance(value, relax.If) else list(value.args)
        if operator in _CALLS:
            arguments = [value.args[1]]
        reads = tuple(number for each in arguments for number in self.numbers(each))
        writes = self.declare(var, VALUE)
        function = _function(value, operator)
        places = getattr(getattr(value, "attrs", None), "inplace_indices", None) or ()
        fields = list(getattr(arguments[0], "fields", ())) if places else []
        updates = tuple(
            n for place in places if int(place) >= 0 for n in self.numbers(fields[int(place)])
        )
        self.calls.append(KernelCall(str(var.name), function, reads, writes, updates))


def _function(value: Any, operator: str) -> str:
    """The name by which a profile's instrument sees a call, if it sees it."""
    if isinstance(value, relax.If):
        return "if"
    if operator in _CALLS or operator in ("relax.call_dps_packed", "relax.call_pure_packed"):
        callee = value.args[0]
        return str(getattr(callee, "name_hint", getattr(callee, "global_symbol", operator)))
    return str(getattr(value.op, "name_hint", getattr(value.op, "global_symbol", operator)))


def _tensors(type_: Any) -> Iterator[Any]:
    """The tensor types in a type."""
    if isinstance(type_, relax.TupleType):
        for each in type_.fields:
            yield from _tensors(each)
    elif isinstance(type_, relax.TensorType):
        yield type_


def _value(name: str, type_: Any, kind: str) -> Value:
    known = isinstance(type_.shape, relax.ShapeExpr)
    extents = list(type_.shape.values) if known else ["?"] * max(int(type_.ndim), 0)
    sizes = [(each, getattr(each, "value", None)) for each in extents]
    # `join`, because TVM's text of an extent is of a subclass of str.
    shape = tuple("".join(str(each)) if size is None else int(size) for each, size in sizes)
    dtype = str(type_.dtype or "")
    nbytes = (int(DataType(dtype).bits) + 7) // 8 if known and dtype else 0
    for size in shape:
        nbytes *= size if isinstance(size, int) else 0
    return Value(name, shape, dtype, nbytes, kind)


def _key(expression: Any) -> int:
    """A key for an expression: the address of its object."""
    return int(expression.__chandle__())


_STORAGE, _TENSOR, _KILL = "vm.alloc_storage", "vm.alloc_tensor", "vm.kill_object"


class Plan(msgspec.Struct, frozen=True):
    """The planned storage of a program.

    Attributes
    ----------
    planned : int or None
        Total bytes of all storage blocks; None if sizes are dynamic.
    peak : int or None
        The most bytes that are in use at a time.
    blocks : int
        Number of storage blocks.
    """

    planned: int | None
    peak: int | None
    blocks: int


NO_PLAN = Plan(None, None, 0)


def storage_plan(main: Any) -> Plan:
    """The storage plan of `main` in the module that the virtual machine's code is made from."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    owner: dict[int, int] = {}
    holders: dict[int, int] = {}
    sizes: dict[int, int] = {}
    used = peak = total = 0
    for binding in bindings:
        value, var = binding.value, int(binding.var.__chandle__())
        operator = str(getattr(getattr(value, "op", None), "name", ""))
        if operator.endswith(_STORAGE):
            shape = value.args[0]
            sizes_of = shape.values if isinstance(shape, relax.ShapeExpr) else [None]
            extents: list[Any] = [getattr(each, "value", None) for each in sizes_of]
            if None in extents:
                return NO_PLAN
            size = math.prod(map(int, extents))
            owner[var], holders[var], sizes[var] = var, 1, size
            used, total = used + size, total + size
            peak = max(peak, used)
        elif isinstance(value, relax.Call | relax.Var):
            source = value.args[0] if isinstance(value, relax.Call) and value.args else value
            storage = owner.get(int(source.__chandle__()))
            if operator.endswith(_KILL) and storage is not None:
                holders[storage] -= 1
                used -= 0 if holders[storage] else sizes[storage]
            elif storage is not None and (
                operator.endswith(_TENSOR)
                or isinstance(value, relax.Var)  # shares the memory of another value
                or str(getattr(value.op, "global_symbol", "")) == "vm.builtin.reshape"
            ):
                owner[var] = storage
                holders[storage] += 1
    return Plan(total, peak, len(sizes))


class Outline(msgspec.Struct, frozen=True):
    """What a report shows of a program besides its decisions and times.

    Attributes
    ----------
    graph : ProgramGraph
        Kernels and the tensors between them.
    plan : Plan
        The planned storage.
    weights : int
        Bytes of the program's constants, as kernels read them.
    """

    graph: ProgramGraph
    plan: Plan
    weights: int

    def packed(self) -> bytes:
        """The outline as compressed bytes."""
        return zlib.compress(msgspec.msgpack.encode(self))

    @staticmethod
    def unpacked(data: bytes) -> Outline:
        """Reads the result of `packed`.

        Raises
        ------
        ArtifactError
            If the data are damaged.
        """
        try:
            return msgspec.msgpack.decode(zlib.decompress(data), type=Outline)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ArtifactError(
                f"the graph in the library is damaged ({error}); export it again"
            ) from error

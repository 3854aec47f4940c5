"""Reads a dataflow block: definitions, uses, operators and tensor types."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import object_address
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize, quotient

AnyBinding: TypeAlias = relax.VarBinding | relax.MatchCast

RANGE_DTYPES = ("float32", "uint8", "int32")  # types that hold a uint8 zero point exactly


_last = threading.local()
# Keyed by address: passes read one type many times.
_read_types: dict[int, tuple[Any, _ReadType | None]] = {}
_MOST_READ = 1 << 14
# Keyed by address; TVM never drops an operator.
_op_names: dict[int, str] = {}


def forget_block() -> None:
    """Forgets the block that this thread read last, its constants, and all types read."""
    _last.read, _last.variables = (None,), {}
    _read_types.clear()


class DataflowGraph:
    """Definitions and uses in one dataflow block.

    Parameters
    ----------
    block : relax.DataflowBlock
        In A-normal form: every argument is a variable, a constant or a tuple of them.
    fuse : bool
        Whether a region may include operators before and after its anchor.

    Attributes
    ----------
    fuse : bool
        As given.
    bindings, position, users
        The bindings; per variable its binding's position and its users. Not to be changed.
    taken : set of int
        Positions that have become part of regions.
    read : set of relax.Expr
        Values that regions read, perhaps past bindings that they absorbed; they escape.
    weights : set of relax.Expr
        Values that are known before a run, but not at compile time.
    rounds : bool
        Whether products with weights of few bits may round their operands to bfloat16.
    programs : mapping
        The functions of the module by global variable.
    """

    bindings: list[AnyBinding]
    position: dict[relax.Expr, int]
    users: dict[relax.Expr, list[int]]

    def __init__(self, block: relax.DataflowBlock, fuse: bool = True) -> None:
        self.fuse = fuse
        self.taken: set[int] = set()
        self.read: set[relax.Expr] = set()
        self.weights: set[relax.Expr] = set()
        self.rounds = False
        self.programs: Mapping[Any, Any] = {}
        # Most passes change nothing: the next one reads the same block.
        known: tuple[Any, ...] = getattr(_last, "read", (None,))
        if not block.same_as(known[0]):
            self.bindings = list(block.bindings[:])  # arrays of TVM are slow to iterate over
            self.position = {binding.var: i for i, binding in enumerate(self.bindings)}
            self.users = {}
            used = read_variables(binding.value for binding in self.bindings)
            for i, each in enumerate(used):
                for var in each:
                    self.users.setdefault(var, []).append(i)
            found = self._range_items()
            known = _last.read = block, self.bindings, self.position, self.users, found
        _, self.bindings, self.position, self.users, found = known
        self.range_items = {**found}

    def value(self, position: int) -> Any:
        """The expression bound at a position; `op_name` gives its operator."""
        return self.bindings[position].value

    def definition(self, expr: relax.Expr) -> relax.Expr | None:
        """The expression bound to a variable of this block, else None."""
        index = self.position.get(expr) if isinstance(expr, relax.Var) else None
        return None if index is None else self.bindings[index].value

    def only_user(self, var: relax.Expr) -> int | None:
        """Position of the only user of a value; None if there are several or none, or for an
        output."""
        users = self.users_of(var)
        inside = isinstance(var, relax.DataflowVar)
        return users[0] if inside and len(users) == 1 else None

    def users_of(self, var: relax.Expr) -> Sequence[int]:
        """Positions of the bindings that read a value."""
        return self.users.get(var, ())

    def item_of_range(self, expr: relax.Expr) -> tuple[relax.Expr, int] | None:
        """(range, 0 or 1) if an expression is the scale or the zero point of a dynamic quantisation
        that `quantization_ranges` wrote, else None."""
        found = self.range_items.get(expr) if isinstance(expr, relax.Var) else None
        return None if found is None else (found[0], found[1])

    def range_chain(self, expr: relax.Expr) -> list[int]:
        """Positions of the bindings that extract an item from a range, in order."""
        return self.range_items[expr][2]

    def _range_items(self) -> dict[relax.Expr, tuple[relax.Expr, int, list[int]]]:
        """Maps every item of a range to (range, index of the item, positions of its chain)."""
        found: dict[relax.Expr, tuple[relax.Expr, int, list[int]]] = {}
        for position, binding in enumerate(self.bindings):
            call = binding.value
            name = op_name(call)
            if name == "relax.strided_slice":
                tensor = static_tensor(call.args[0])
                source = self.definition(call.args[0])
                if tensor is None or (tensor.shape, tensor.dtype) != ((2,), "float32"):
                    continue
                if isinstance(source, relax.Call) and isinstance(source.op, relax.GlobalVar):
                    first = int(call.args[2].fields[0].value)
                    found[binding.var] = (call.args[0], first, [position])
            elif name in ("relax.reshape", "relax.astype") and call.args[0] in found:
                if str(call.ty.dtype) not in RANGE_DTYPES:
                    continue
                source, index, chain = found[call.args[0]]
                found[binding.var] = (source, index, [*chain, position])
        return found

    def escapes(self, var: relax.Var, members: Iterable[int]) -> bool:
        """Whether anything outside `members` (positions of bindings) needs the value of `var`."""
        if not isinstance(var, relax.DataflowVar) or var in self.read:
            return True
        inside = set(members)
        return any(user not in inside for user in self.users_of(var))


def bindings_of(function: relax.Function) -> list[AnyBinding]:
    """The bindings of all blocks of a function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings[:]]


def downstream(graph: DataflowGraph, var: relax.Var, depth: int) -> list[relax.Var]:
    """Values computed from a value by chains of at most `depth` operators, nearest first."""
    found: dict[relax.Var, None] = {var: None}
    frontier = [var]
    for _ in range(depth):
        users = {user: None for v in frontier for user in graph.users_of(v)}
        frontier = [graph.bindings[user].var for user in users]
        frontier = [v for v in frontier if v not in found]
        found.update(dict.fromkeys(frontier))
    return [*found][1:]


def op_name(expr: relax.Expr | None) -> str:
    """Name of the Relax operator that an expression calls; "" if it calls none."""
    if not isinstance(expr, relax.Call):
        return ""
    place = object_address(expr.op)
    if place in _op_names:
        return _op_names[place]
    if not isinstance(expr.op, ir.Op):
        return ""
    return _op_names.setdefault(place, str(expr.op.name))


def packed_name(expr: relax.Expr) -> str:
    """Name of the external function that an expression calls; "" if it calls none."""
    outside = isinstance(expr, relax.Call) and isinstance(expr.op, relax.ExternFunc)
    return str(expr.op.global_symbol) if outside else ""


def is_call(expr: relax.Expr | None, *names: str) -> TypeGuard[relax.Call]:
    """Whether an expression is a call of one of these Relax operators."""
    return op_name(expr) in names


def static_tensor(expr: relax.Expr) -> Tensor | None:
    """Shape and element type of a tensor; None if they are not static."""
    read = _read_type(expr.ty)
    return None if read is None or not read.known else read.tensor(expr)


def region_tensor(expr: relax.Expr) -> Tensor | None:
    """Shape and element type of a tensor, dynamic sizes as symbols; None if the shape is unknown.

    A size is a sum of products of variables; a quotient or another operation becomes a symbol.
    """
    read = _read_type(expr.ty)
    return None if read is None else read.tensor(expr)


class _ReadType(NamedTuple):
    """A type's tensor for computed values and for constants; whether all sizes are static."""

    computed: Tensor
    constant: Tensor
    known: bool

    def tensor(self, expr: relax.Expr) -> Tensor:
        """The tensor for an expression of the type."""
        return self.constant if isinstance(expr, ir.GenericConst) else self.computed


def _read_type(ty: Any) -> _ReadType | None:
    """What a type says; None unless it is a tensor type with known shape and element type."""
    place = object_address(ty)
    known = _read_types.get(place)  # the object is kept, so no other one has its address
    if known is None:
        if len(_read_types) >= _MOST_READ:
            _read_types.clear()
        read = None
        extents = getattr(ty.shape, "values", None) if isinstance(ty, relax.TensorType) else None
        if extents is not None and ty.dtype is not None:
            sizes = extents[:]  # a list: arrays of TVM are slow to iterate over
            numbers: list[Any] = [getattr(extent, "value", None) for extent in sizes]
            static = None not in numbers
            shape = tuple(numbers) if static else tuple(_size(extent, {}) for extent in sizes)
            dtype = str(ty.dtype)
            read = _ReadType(Tensor(shape, dtype), Tensor(shape, dtype, True), static)
        known = _read_types[place] = ty, read
    return known[1]


def size_of(extent: Any) -> int:
    """An extent of a shape, or an integer expression of extents, as a size."""
    return _size(extent, {})


def relax_shape(shape: Sequence[int], *exprs: relax.Expr) -> list[Any]:
    """A shape for a Relax operator; its symbols become the variables in some tensors' shapes."""
    symbols: dict[str, Any] = {}
    extents: dict[int, Any] = {}
    for expr in exprs:
        for extent in getattr(getattr(expr.ty, "shape", None), "values", None) or ():
            extents.setdefault(_size(extent, symbols), extent)

    def written(size: int) -> Any:
        """The extent as the tensors write it: TVM cannot prove sums equal to products."""
        if size in extents:
            return extents[size]
        for known, extent in extents.items():
            sums = isinstance(known, SymbolicSize) and len(known.terms) > 1
            rest = quotient(size, known) if sums else None
            if rest is not None:
                return extent * written(rest)
        return _extent(size, symbols)

    return [written(size) for size in shape]


def reshaped(expr: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """A tensor in another shape, whose symbols occur in the tensor's own shape."""
    return relax.op.reshape(expr, relax_shape(shape, expr))


def _size(extent: Any, found: dict[str, Any]) -> int:
    """An extent as a size; `found` receives the expression that each symbol stands for."""
    if isinstance(extent, int) or hasattr(extent, "value"):
        return int(extent)
    if isinstance(extent, (tirx.Add, tirx.Sub, tirx.Mul)):
        a, b = _size(extent.a, found), _size(extent.b, found)
        if isinstance(extent, tirx.Mul):
            return a * b
        return a + (b if isinstance(extent, tirx.Add) else b * -1)
    name = _symbol(extent)
    found[name] = extent
    return SymbolicSize.of(name)


# Simplifying an extent is slow, and passes ask for one extent many times.
_named: dict[int, tuple[Any, str]] = {}
_MOST_NAMED = 1 << 12


def _symbol(extent: Any) -> str:
    """A variable's name, or a generated name for an expression that is no sum or product."""
    if isinstance(extent, tirx.Var):
        return str(extent.name)
    known = _named.get(hash(extent))  # hashes the object, which is kept alive, not its content
    if known is not None and known[0].same_as(extent):
        return known[1]
    variables: list[tirx.Var] = []
    tvm_ffi.structural_walk(extent, (tirx.Var, variables.append))
    digest = hashlib.sha256(str(Analyzer().simplify(extent)).encode()).hexdigest()[:10]
    name = f"of_{variables[0].name if variables else ''}_{digest}"
    if len(_named) >= _MOST_NAMED:
        _named.clear()
    _named[hash(extent)] = extent, name
    return name


def _extent(size: int, variables: Mapping[str, Any]) -> Any:
    if not isinstance(size, SymbolicSize):
        return size
    terms = [
        math.prod((variables[name] for name in product), start=tirx.const(count, "int64"))
        for product, count in size.terms.items()
    ]
    return Analyzer().simplify(sum(terms[1:], start=terms[0]))


def known_tensor(expr: relax.Expr) -> Tensor:
    """`region_tensor` of an expression that is known to have one."""
    tensor = region_tensor(expr)
    assert tensor is not None
    return tensor


def is_f32(expr: relax.Expr) -> bool:
    """Whether an expression is a float32 tensor of known shape, static or symbolic."""
    tensor = region_tensor(expr)
    return tensor is not None and tensor.dtype == "float32"


def same_shape(a: relax.Expr, b: relax.Expr) -> bool:
    """Whether two tensors have equal shapes, static or symbolic."""
    first, second = region_tensor(a), region_tensor(b)
    return first is not None and second is not None and first.shape == second.shape


def scalar_constant(expr: relax.Expr) -> float | None:
    """The number that a one-element constant holds, else None."""
    if isinstance(expr, ir.GenericConst) and math.prod(expr.value.shape) == 1:
        return float(expr.value.numpy().reshape(()))
    return None


# Variables that an expression uses, cached for the block that was read last: consecutive passes
# read one block, and keep most of its values.


def variables(expr: relax.Expr) -> Sequence[relax.Var]:
    """Variables that an expression uses, in order, each once; not to be changed."""
    known = _known().get(object_address(expr))
    return _read(expr) if known is None else known[1]


def read_variables(values: Iterable[relax.Expr]) -> list[Sequence[relax.Var]]:
    """The variables of all values of a block; the cache then holds this block's values only."""
    before, known = _known(), {}
    found = []
    for value in values:
        place = object_address(value)
        entry = known[place] = before.get(place) or (value, _read(value))
        found.append(entry[1])
    _last.variables = known
    return found


def _known() -> dict[int, tuple[relax.Expr, Sequence[relax.Var]]]:
    """The cache by address; each object is kept alive, so no other object gets its address."""
    known: dict[int, Any] = getattr(_last, "variables", {})
    return known


def _read(expr: relax.Expr) -> Sequence[relax.Var]:
    found: dict[relax.Var, None] = {}
    if isinstance(expr, relax.Call) and isinstance(expr.op, (ir.Op, ir.GlobalVar)):
        for argument in expr.args[:]:  # a list: arrays of TVM are slow to iterate over
            if isinstance(argument, relax.Var):
                found[argument] = None
            elif not isinstance(argument, ir.GenericConst):
                found.update(dict.fromkeys(_visited(argument)))
        return list(found)
    return _visited(expr)


def _visited(expr: relax.Expr) -> list[relax.Var]:
    """Variables of any expression, found by TVM's visitor."""
    return [node for node in nodes_in(expr) if isinstance(node, relax.Var)]


def nodes_in(expr: relax.Expr) -> list[relax.Expr]:
    """Every node of an expression or a function, each once, operands before their users."""
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(expr, found.append)
    return found

"""Reads a whole TIR function as operators, block by block.

Before

    @T.prim_func
    def fused_matmul_add_relu(x, w, b, y):      # as made by LegalizeOps, FuseOps and FuseTIR
        ...

After

    lv = R.matmul(x, w)
    lv1 = R.add(lv, b)
    lv2 = R.nn.relu(lv1)

A block is a convolution, a contraction, another reduction, or a value per element. A function with
any other block stays; but if it contains a product, it is taken apart, and its other blocks become
separate functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import DataType, relax, s_tir, tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr
from relay_passes.ir.graph import op_name, size_of
from tir_schedules.generic.expressions import const_int, loads_of, same_indices, variables_of
from tir_schedules.generic.nest import Axis, Nest, NotHandledError, read_program, statements_of
from tir_schedules.tensorize.arrangement import RefusedError
from tir_schedules.tensorize.read_contraction import factors_of

from .emission import Emission, Tensors
from .tir_contraction import AddFunction, read_product, read_products
from .tir_convolution import read_convolution
from .tir_values import ValueReader, block_axes, read_block
from .tir_windows import Pool, Transposed, find_pools, find_transposed, read_pool, read_transposed

_MOST_BLOCKS = 64
ReadProduct = Callable[[Emission, Tensors, Nest, AddFunction], tuple[relax.Expr, str]]


def lift_function(
    block: Emission, function: tirx.PrimFunc, args: Sequence[relax.Expr], add: AddFunction
) -> tuple[list[relax.Expr], list[str], list[str]]:
    """Emits operators for a function.

    Parameters
    ----------
    block : Emission
        Receives the operators; some of them even if the function is refused.
    function : tirx.PrimFunc
        A function with a parameter for each argument and for each result.
    args : sequence of relax.Expr
        The arguments of its call.
    add : callable
        Adds a function to the module.

    Returns
    -------
    values : list of relax.Expr
        The results of the function.
    products : list of str
        How each product in it is computed.
    left : list of str
        Blocks that became separate functions, and why.

    Raises
    ------
    RefusedError
        If the function stays; the message says why.
    """
    try:
        program = read_program(function, size_of)
    except NotHandledError as reason:
        raise RefusedError(str(reason)) from None
    assert isinstance(function.body, s_tir.SBlockRealize)
    statements = statements_of(function.body.block.body)
    if len(statements) != len(program.nests) or not 0 < len(statements) <= _MOST_BLOCKS:
        raise RefusedError("blocks without elements, or too many blocks")
    if any(const_int(extent) == 0 for parameter in function.params for extent in parameter.shape):
        raise RefusedError("an extent of 0")
    written = [store.buffer for nest in program.nests for store in nest.stores]
    inputs = list(function.params[: len(args)])
    if len(set(written)) < len(written) or any(buffer in written for buffer in inputs):
        raise RefusedError("a tensor is written twice, or an input is written")
    tensors = Tensors(zip(inputs, args, strict=True))
    reader = _Reader(block, tensors, program.nests, statements, add)
    reader.read()
    if reader.left and not reader.products:
        raise RefusedError("; ".join(reader.left))
    results = function.params[len(args) :]
    if any(result not in reader.tensors for result in results):
        raise RefusedError("a result is not written")
    return [reader.tensors[each] for each in results], reader.products, reader.left


def is_product(nest: Nest) -> bool:
    """Whether a block sums products of elements of two or more tensors."""
    try:
        factors_of(nest)
    except RefusedError:
        return False
    return True


@dataclass
class _Reader:
    """Reads the blocks of one function, in order.

    Attributes
    ----------
    block : Emission
        Receives the operators.
    tensors : dict
        The buffers' values; receives the values that blocks store.
    nests, statements : sequence
        The blocks.
    add : callable
        Adds a function to the module.
    products, left : list of str
        As in `lift_function`.
    """

    block: Emission
    tensors: Tensors
    nests: Sequence[Nest]
    statements: Sequence[tirx.Stmt]
    add: AddFunction
    products: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Emits all blocks; raises RefusedError if the function stays."""
        groups: dict[int, Transposed | Pool] = {**find_pools(self.nests)}
        groups |= find_transposed(self.nests)
        waiting = {member for each in groups.values() for member in each.members}
        for number, nest in enumerate(self.nests):
            if number in groups:
                mark = self.block.mark
                try:
                    value = self._together(groups[number])
                except RefusedError:
                    self.block.undo(mark)
                    for member in groups[number].members:
                        self._read(member)
                else:
                    self.tensors[nest.stores[0].buffer] = value
                    continue
            if number not in waiting:
                self._read(number)

    def _together(self, group: Transposed | Pool) -> relax.Expr:
        """Emits the operator that several blocks compute together."""
        if isinstance(group, Pool):
            return read_pool(self.block, self.tensors, group)
        value = read_transposed(self.block, self.tensors, group)
        self.products.append("a transposed convolution")
        return value

    def _read(self, number: int) -> None:
        """Emits one block as operators, or as a call of a separate function."""
        nest, mark = self.nests[number], self.block.mark
        try:
            value, how = self._lifted(nest)
            self.products += [how] if how else []
        except RefusedError as reason:
            self.block.undo(mark)
            if not any(map(is_product, self.nests)):
                raise RefusedError(f"{nest.name}: {reason}") from None
            self.left.append(f"{nest.name}: {reason}")
            value = self._apart(nest, self.statements[number])
        self.tensors[nest.stores[0].buffer] = value

    def _lifted(self, nest: Nest) -> tuple[relax.Expr, str]:
        """The value of a block, and how it is multiplied if it is a product."""
        block, tensors = self.block, self.tensors
        if not nest.reduce:
            return read_block(block, tensors, nest), ""
        if not is_product(nest):
            return read_reduction(block, tensors, nest), ""
        if len(factors_of(nest)[1]) > 2:
            return self._product(nest, read_products)
        mark = block.mark
        try:
            conv = read_convolution(block, tensors, nest)
        except RefusedError:
            block.undo(mark)
            return self._product(nest, read_product)
        return conv, f"windows of {op_name(block.definition(conv)).rpartition('.')[2]}"

    def _product(self, nest: Nest, read: ReadProduct) -> tuple[relax.Expr, str]:
        """Emits a contraction; beside other blocks also a norm's sum of x * x, as a reduction."""
        mark = self.block.mark
        try:
            return read(self.block, self.tensors, nest, self.add)
        except RefusedError as reason:
            self.block.undo(mark)
            store, _ = factors_of(nest)
            if len(self.nests) == 1 or str(store.value.ty.dtype) != "float32":
                raise
            try:
                return read_reduction(self.block, self.tensors, nest), ""
            except RefusedError:
                raise reason from None

    def _apart(self, nest: Nest, statement: tirx.Stmt) -> relax.Expr:
        """Emits a block as a call of a separate function."""
        if len(nest.stores) != 1:
            raise RefusedError(f"{nest.name}: a block of several values")
        target = nest.stores[0].buffer
        read = {load.source for load in nest.reads() if not load.source.same_as(target)}
        sources = [buffer for buffer in self.tensors if buffer in read]
        if len(sources) != len(read):
            raise RefusedError(f"{nest.name}: it reads a tensor that is not written yet")
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", statement))
        function = tirx.PrimFunc([*sources, target], root).with_attr("tirx.noalias", True)
        call = relax.call_tir(
            self.add(function.with_attr("s_tir", True), nest.name),
            [self.tensors[source] for source in sources],
            relax.TensorType(list(target.shape), str(target.dtype)),
        )
        return self.block.emit(call)


_REDUCTIONS: dict[type, Callable[..., relax.Expr]] = {
    tirx.Add: relax.op.sum,
    tirx.Max: relax.op.max,
    tirx.Min: relax.op.min,
}


def read_reduction(block: Emission, tensors: Tensors, nest: Nest) -> relax.Expr:
    """The value of a block that reduces axes, as R.sum, R.max or R.min.

    Before

        total[v_i] = 0
        total[v_i] += x[v_i, v_k]

    After

        lv = R.sum(x, axis=[1], keepdims=True)
        lv1 = R.reshape(lv, [8])

    The axes are kept until the reshape, so that operators which later blocks compute from them can
    use the sum as it is.

    Raises
    ------
    RefusedError
        If it is no plain sum, maximum or minimum of one value; the message says why.
    """
    if not nest.reduce or len(nest.stores) != 1 or nest.lets or nest.epilogue:
        raise RefusedError("a block of several values")
    store = nest.stores[0]
    value = store.value
    operator = _REDUCTIONS.get(type(value))
    if operator is None:
        raise RefusedError("a reduction that is neither a sum nor an extreme")
    own = [
        isinstance(side, TensorLoad)
        and side.source.same_as(store.buffer)
        and same_indices(side.indices, store.indices)
        for side in (value.a, value.b)
    ]
    if own.count(True) != 1 or not _starts(type(value), store.start):
        raise RefusedError("a reduction that is neither a sum nor an extreme")
    term = value.b if own[0] else value.a
    if any(load.source.same_as(store.buffer) for load in loads_of(term)):
        raise RefusedError("a reduction that reads its own result")
    out = block_axes(store, nest)
    axes = _in_order(term, out, nest.reduce)
    tensor = ValueReader(block, tensors, axes).whole(term)
    reduced = [axes.index(axis) for axis in nest.reduce]
    result = block.emit(operator(tensor, reduced, keepdims=True))
    kept = [axis for axis in axes if axis not in nest.reduce]
    wanted = [axis for axis in out if axis in axes]
    if kept != wanted:
        order = [axes.index(axis) for axis in (*wanted, *nest.reduce)]
        result = block.emit(relax.op.permute_dims(result, order))
    return block.emit(relax.op.reshape(result, [axis.stated for axis in out]))


def _in_order(term: Expr, out: Sequence[Axis], reduce: Sequence[Axis]) -> list[Axis]:
    """The axes in the order of the first tensor with most of them; all other axes come first."""
    loads = loads_of(term)
    if not loads:
        return [*out, *reduce]
    most = max(loads, key=lambda load: sum(map(len, map(variables_of, load.indices))))
    places = {
        index: place for place, index in enumerate(most.indices) if isinstance(index, tirx.Var)
    }
    units = [axis for axis in out if axis.extent == 1]
    free = [place for place, index in enumerate(most.indices) if const_int(index) == 0]
    places |= {axis.var: place for axis, place in zip(units, free, strict=False)}
    # Axes of the result of extent 1 that the tensor lacks.
    left_out = units[len(free) :]
    axes = [axis for axis in (*out, *reduce) if axis not in left_out]
    return sorted(axes, key=lambda axis: places.get(axis.var, -1))


def _starts(kind: type, start: Expr) -> bool:
    """Whether a reduction starts from its neutral element."""
    if not isinstance(start, (tirx.FloatImm, tirx.IntImm)):
        return False
    dtype, number = str(start.ty.dtype), float(start.value)
    if kind is tirx.Add:
        return number == 0
    sign = -1 if kind is tirx.Max else 1
    if "float" in dtype:
        return number * sign >= 65504 and (dtype != "float32" or number * sign > 3.4e38)
    bits, signed = DataType(dtype).bits, not dtype.startswith("u")
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return number == (least if kind is tirx.Max else most)

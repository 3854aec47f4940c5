"""Reads a whole TIR function as operators, block by block.

Before

    @T.prim_func
    def fused_matmul_add_relu(x, w, b, y):      # as LegalizeOps, FuseOps and FuseTIR make it
        ...

After

    lv = R.matmul(x, w)
    lv1 = R.add(lv, b)
    lv2 = R.nn.relu(lv1)

A block is a convolution, a contraction, another reduction, or a value of each element. If it is
none of these the function stays; but one with a product is taken apart, and its other blocks become
functions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import relax, s_tir, tirx

from relay_passes.ir.graph import op_name, size_of
from tir_schedules.generic.expressions import const_int
from tir_schedules.generic.nest import Nest, NotHandledError
from tir_schedules.generic.read_program import read_program, statements_of
from tir_schedules.tensorize.contraction import RefusedError
from tir_schedules.tensorize.read_contraction import factors_of

from .emission import Emission
from .tir_contraction import AddFunction, read_product, read_products
from .tir_convolution import read_convolution
from .tir_elements import Tensors
from .tir_pools import Pool, find_pools, read_pool
from .tir_sums import read_reduction
from .tir_transposed import Transposed, find_transposed, read_transposed
from .tir_values import read_block

_MOST_BLOCKS = 64
ReadProduct = Callable[[Emission, Tensors, Nest], tuple[relax.Expr, str]]


@dataclass(frozen=True)
class Lifted:
    """A function as operators.

    Attributes
    ----------
    values : tuple of relax.Expr
        Its results.
    products : tuple of str
        How each product in it is computed.
    left : tuple of str
        Blocks that became functions of their own, and why.
    """

    values: tuple[relax.Expr, ...]
    products: tuple[str, ...]
    left: tuple[str, ...]


def lift_function(
    block: Emission, function: tirx.PrimFunc, args: Sequence[relax.Expr], add: AddFunction
) -> Lifted:
    """Emits what a function computes.

    Parameters
    ----------
    block : Emission
        Receives the operators; some of them even if the function is refused.
    function : tirx.PrimFunc
        With a parameter for each argument, and one for each result.
    args : sequence of relax.Expr
        What it is called with.
    add : callable
        Adds a function to the module.

    Raises
    ------
    RefusedError
        If it stays; says why.
    """
    try:
        program = read_program(function, size_of)
    except NotHandledError as reason:
        raise RefusedError(str(reason)) from None
    assert isinstance(function.body, s_tir.SBlockRealize)
    statements = statements_of(function.body.block.body)
    if len(statements) != len(program.nests) or not 0 < len(statements) <= _MOST_BLOCKS:
        raise RefusedError("blocks without elements, or too many of them")
    if any(const_int(extent) == 0 for parameter in function.params for extent in parameter.shape):
        raise RefusedError("an extent of 0")
    written = [store.buffer for nest in program.nests for store in nest.stores]
    inputs = list(function.params[: len(args)])
    if len(set(written)) < len(written) or any(buffer in written for buffer in inputs):
        raise RefusedError("a tensor that is written twice")
    reader = _Reader(block, dict(zip(inputs, args, strict=True)), program.nests, statements, add)
    reader.read()
    if reader.left and not reader.products:
        raise RefusedError("; ".join(reader.left))
    results = function.params[len(args) :]
    if any(result not in reader.tensors for result in results):
        raise RefusedError("a result that is not written")
    values = tuple(reader.tensors[each] for each in results)
    return Lifted(values, tuple(reader.products), tuple(reader.left))


def is_product(nest: Nest) -> bool:
    """Whether a block sums products of elements of two tensors or more."""
    try:
        factors_of(nest)
    except RefusedError:
        return False
    return True


class _Reader:
    """Reads the blocks of one function, in order.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    tensors : dict
        What the function is given; receives what its blocks store.
    nests, statements : sequence
        The blocks.
    add : callable
        Adds a function to the module.
    """

    def __init__(
        self,
        block: Emission,
        tensors: dict[tirx.Var, relax.Expr],
        nests: Sequence[Nest],
        statements: Sequence[tirx.Stmt],
        add: AddFunction,
    ) -> None:
        self.tensors = tensors
        self.products: list[str] = []
        self.left: list[str] = []
        self._block, self._add = block, add
        self._nests, self._statements = nests, statements
        self._has_product = any(map(is_product, nests))

    def read(self) -> None:
        """Emits all blocks; RefusedError if they stay."""
        groups: dict[int, Transposed | Pool] = {
            **find_pools(self._nests),
            **find_transposed(self._nests),
        }
        waiting = {member for each in groups.values() for member in each.members}
        for number, nest in enumerate(self._nests):
            if number in groups:
                mark = self._block.mark
                try:
                    value = self._together(groups[number])
                except RefusedError:
                    self._block.undo(mark)
                    for member in groups[number].members:
                        self._read(member)
                else:
                    self.tensors[nest.stores[0].buffer] = value
                    continue
            if number not in waiting:
                self._read(number)

    def _together(self, group: Transposed | Pool) -> relax.Expr:
        """What several blocks compute together."""
        if isinstance(group, Pool):
            return read_pool(self._block, self.tensors, group)
        value = read_transposed(self._block, self.tensors, group)
        self.products.append("a transposed convolution")
        return value

    def _read(self, number: int) -> None:
        """Emits one block, or a call of a function that is nothing else."""
        nest, mark = self._nests[number], self._block.mark
        try:
            value, how = self._lifted(nest)
            self.products += [how] if how else []
        except RefusedError as reason:
            self._block.undo(mark)
            if not self._has_product:
                raise RefusedError(f"{nest.name}: {reason}") from None
            self.left.append(f"{nest.name}: {reason}")
            value = self._apart(nest, self._statements[number])
        self.tensors[nest.stores[0].buffer] = value

    def _lifted(self, nest: Nest) -> tuple[relax.Expr, str]:
        """What a block computes, and how, if it is a product."""
        block, tensors = self._block, self.tensors
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
            return self._product(nest, partial(read_product, add=self._add))
        return conv, f"windows of {op_name(block.definition(conv)).rpartition('.')[2]}"

    def _product(self, nest: Nest, read: ReadProduct) -> tuple[relax.Expr, str]:
        """A contraction; beside other blocks also the sum of x * x, as of a norm, as it is."""
        mark = self._block.mark
        try:
            return read(self._block, self.tensors, nest)
        except RefusedError as reason:
            self._block.undo(mark)
            store, _ = factors_of(nest)
            if len(self._nests) == 1 or str(store.value.ty.dtype) != "float32":
                raise
            try:
                return read_reduction(self._block, self.tensors, nest), ""
            except RefusedError:
                raise reason from None

    def _apart(self, nest: Nest, statement: tirx.Stmt) -> relax.Expr:
        """A block as a call of a function that is nothing else."""
        if len(nest.stores) != 1:
            raise RefusedError(f"{nest.name}: a block of several values")
        target = nest.stores[0].buffer
        read = {load.source for load in nest.reads() if not load.source.same_as(target)}
        sources = [buffer for buffer in self.tensors if buffer in read]
        if len(sources) != len(read):
            raise RefusedError(f"{nest.name}: it reads what is not written yet")
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", statement))
        function = tirx.PrimFunc([*sources, target], root).with_attr("tirx.noalias", True)
        call = relax.call_tir(
            self._add(function.with_attr("s_tir", True), nest.name),
            [self.tensors[source] for source in sources],
            relax.TensorType(list(target.shape), str(target.dtype)),
        )
        return self._block.emit(call)

"""An ATen graph as a Relax module: TVM's converters, ours, and a check of what each makes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tvm import IRModule, relax, tirx

from microkernels.base.errors import TvmHybridError, UnsupportedOperatorError

from ..expressions import writing_to
from .converters import NUMBERS, known_converters, new_importer, refuse_unknown
from .promotion import constant_of, type_name
from .sizes import Sizes, size_symbol


@dataclass(frozen=True)
class AtenModule:
    """A graph's tensors as a Relax module computes them.

    Attributes
    ----------
    mod : IRModule
        Its function `main` returns a tensor, or a tuple of several.
    inputs : tuple of int
        Which placeholders it takes, in this order; the others are constants or sizes.
    numbers : tuple of int
        Which placeholders are numbers of which it takes, behind the inputs, a vector of bool of so
        many elements: that is how a program learns a size that no input has.
    input_orders, output_orders : tuple of Order or None
        The order of axes in which it takes and gives a tensor.
    """

    mod: IRModule
    inputs: tuple[int, ...]
    numbers: tuple[int, ...]
    input_orders: tuple[Order | None, ...]
    output_orders: tuple[Order | None, ...]


def import_graph(
    graph: Any, frozen: Mapping[int, Any], outputs: Sequence[Any], in_memory_order: bool = False
) -> AtenModule:
    """The Relax module that computes some nodes of a graph.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        Of ATen operators, without changes in place.
    frozen : mapping of int to torch.Tensor
        The values of placeholders that are constants.
    outputs : sequence of torch.fx.Node
        The tensors to return, at least one.
    in_memory_order : bool
        Whether tensors are taken and given with their axes in the order of memory.

    Raises
    ------
    UnsupportedOperatorError
        Naming the operators that nobody converts, or the one that cannot be.
    """
    nodes = _needed(graph, outputs)
    refuse_unknown(nodes, known_converters())
    return _Import(graph, nodes).run(frozen, outputs, in_memory_order)


class _Import:
    """What is known while one graph is imported."""

    def __init__(self, graph: Any, nodes: Sequence[Any]) -> None:
        self.graph, self.nodes, self.needed = graph, nodes, set(nodes)
        self.sizes = Sizes()
        self.importer = new_importer(self.sizes)
        self.importer.block_builder = self.builder = relax.BlockBuilder()
        table = self.importer.convert_map
        table.update({name: partial(self._converted, each) for name, each in table.items()})
        self.env: dict[Any, Any] = self.importer.env

    def run(
        self, frozen: Mapping[int, Any], outputs: Sequence[Any], in_memory_order: bool
    ) -> AtenModule:
        """The whole module."""
        placeholders = [node for node in self.graph.graph.nodes if node.op == "placeholder"]
        parameters: dict[int, relax.Var] = {}
        orders: dict[int, Order | None] = {}
        for position, node in enumerate(placeholders):
            if position in frozen:
                if node in self.needed:
                    self.env[node] = constant_of(frozen[position])
            elif isinstance(node.meta["val"], torch.Tensor):
                order = memory_order(node.meta["val"]) if in_memory_order else None
                parameters[position] = self._parameter(node, order)
                orders[position] = order
            elif node in self.needed:
                self.env[node] = self._number(node.meta["val"])
        carriers = self._carriers(placeholders, parameters.values())
        into = [memory_order(node.meta["val"]) if in_memory_order else None for node in outputs]
        arguments = [*parameters.values(), *carriers.values()]
        with writing_to(self.builder), self.builder.function("main", arguments):
            with self._block():
                for position, order in orders.items():
                    if order is not None:
                        undone = _permuted(parameters[position], inverse(order))
                        self.env[placeholders[position]] = self.builder.emit(undone)
                for node in self.nodes:
                    if node.op != "placeholder":
                        self.env[node] = self._value(node)
                results = [
                    self.env[node]
                    if order is None
                    else relax.op.permute_dims(self.env[node], order)
                    for node, order in zip(outputs, into, strict=True)
                ]
                result = results[0] if len(results) == 1 else relax.Tuple(results)
                if not self._branches():
                    result = self.builder.emit_output(result)
            self.builder.emit_func_output(result)
        return AtenModule(
            self.builder.get(),
            tuple(parameters),
            tuple(carriers),
            tuple(orders.values()),
            tuple(into),
        )

    def _block(self) -> contextlib.AbstractContextManager[object]:
        """Where values are written: branches are not allowed in a block of dataflow."""
        return contextlib.nullcontext() if self._branches() else self.builder.dataflow()

    def _branches(self) -> bool:
        return any(_name(node) == "cond" for node in self.nodes)

    def _parameter(self, node: Any, order: Order | None) -> relax.Var:
        value = node.meta["val"]
        shape = [self.sizes.of(size) for size in value.shape]
        if order is not None:
            shape = [shape[axis] for axis in order]
        found = relax.Var(node.name, relax.TensorType(shape, type_name(value.dtype)))
        self.env[node] = found
        return found

    def _carriers(
        self, placeholders: Sequence[Any], parameters: Iterable[relax.Var]
    ) -> dict[int, relax.Var]:
        """Vectors that tell the sizes that no input has, by the placeholders of these."""
        shapes = [size for each in parameters for size in each.ty.shape.values]
        bound = {str(size.name) for size in shapes if isinstance(size, tirx.Var)}
        missing = sorted(self.sizes.names - bound)
        found: dict[int, relax.Var] = {}
        for position, node in enumerate(placeholders):
            name = size_symbol(node.meta["val"])
            if name in missing:
                missing.remove(name)
                shape = [self.sizes.of(node.meta["val"])]
                found[position] = relax.Var(node.name, relax.TensorType(shape, "bool"))
        if missing:
            raise UnsupportedOperatorError(
                f"the numbers {', '.join(missing)} of the graph are not sizes; pass tensors "
                "instead of numbers that change"
            )
        return found

    def _value(self, node: Any) -> Any:
        if node.op == "get_attr":
            value = getattr(self.graph, node.target)
            return constant_of(value) if isinstance(value, torch.Tensor) else value
        expected = node.meta.get("val")
        if isinstance(expected, NUMBERS):
            return self._number(expected)
        return self.importer.convert_map[_name(node)](node)

    def _converted(self, convert: Callable[[Any], Any], node: Any) -> Any:
        """A call's value, of the type that torch says; so are those in branches of `cond`."""
        try:
            value = convert(node)
            if isinstance(value, relax.Call):
                value = self.builder.emit(value)
        except TvmHybridError:
            raise
        except Exception as error:
            raise UnsupportedOperatorError(
                f"{_described(node)} cannot be imported in this form: {error}"
            ) from error
        self._check(node, value)
        return value

    def _check(self, node: Any, value: Any) -> None:
        """Refuses a value whose type is not what torch says: its converter means another."""
        expected, found = node.meta.get("val"), getattr(value, "ty", None)
        if not isinstance(expected, torch.Tensor) or not isinstance(found, relax.TensorType):
            return
        wanted = type_name(expected.dtype)
        if str(found.dtype) == wanted and not self._other_shape(expected.shape, found):
            return
        raise UnsupportedOperatorError(
            f"{_described(node)} is imported as {found}, but torch makes {wanted} of shape "
            f"({', '.join(map(str, expected.shape))})"
        )

    def _other_shape(self, wanted: Sequence[Any], found: relax.TensorType) -> bool:
        if found.ndim == -1 or not isinstance(found.shape, relax.ShapeExpr):
            return found.ndim not in (-1, len(wanted))
        if found.ndim != len(wanted):
            return True
        return any(map(self.sizes.differ, wanted, found.shape.values))

    def _number(self, value: Any) -> Any:
        return self.sizes.of(value) if isinstance(value, torch.SymInt) else value


def _needed(graph: Any, outputs: Sequence[Any]) -> list[Any]:
    """The nodes that some depend on, these included, in order."""
    found: set[Any] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return [node for node in graph.graph.nodes if node in found]


def _permuted(value: relax.Expr, order: Order | None) -> relax.Expr:
    return value if order is None else relax.op.permute_dims(value, order)


def _name(node: Any) -> str:
    """The operator of a call, such as "add.Tensor"."""
    return node.target.__name__ if node.op == "call_function" else ""


def _described(node: Any) -> str:
    """The operator of a call, or the one of whose results it takes one, as messages have it."""
    if node.target is operator.getitem:
        source, number = node.args
        return f"result {number} of {_described(source)}"
    return f"operator {_name(node)} (node {node.name!r})"


# The order in which a tensor's axes lie in memory, where that is not their own order.
#
# Images of PyTorch may lie channels last, results may be transposed. Kernels of TVM see consecutive
# elements. So the program takes and gives such a tensor with its axes in the order of memory, and
# permutes them inside, where that often cancels.


Order = tuple[int, ...]


def memory_order(tensor: Any) -> Order | None:
    """Axes from the outermost to the innermost; None if that is 0, 1, 2 and so on.

    Parameters
    ----------
    tensor : torch.Tensor
        Real or fake. None as well if its elements are not consecutive in any order.
    """
    shape = [_number(size) for size in tensor.shape]
    strides = [_number(stride) for stride in tensor.stride()]
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    order = sorted(axes, key=lambda axis: -strides[axis])
    if order == axes or 0 in shape or not _is_dense(order, shape, strides):
        return None
    # Axes of one element may stand anywhere: before the one that follows them.
    for axis in reversed([axis for axis, size in enumerate(shape) if size == 1]):
        order.insert(order.index(axis + 1) if axis + 1 in order else len(order), axis)
    return tuple(order)


def inverse(order: Order) -> Order:
    """The order that undoes one."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _is_dense(order: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(order):
        if strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


def _number(size: Any) -> int:
    """A size; of a symbolic one, what it is in the example."""
    return size if isinstance(size, int) else int(size.node.hint)

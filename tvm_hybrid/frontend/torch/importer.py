"""Imports an ATen graph, or a program of `torch.export`, as a Relax module, by TVM's converters and
ours, and checks the type of each converter's result.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.export import default_decompositions
from torch.export.graph_signature import InputKind, OutputKind
from tvm import IRModule, relax, tirx

from microkernels.base.errors import ModelError, TvmHybridError, UnsupportedOperatorError

from ..expressions import writing_to
from .converters import NUMBERS, new_importer, refuse_unknown
from .decompositions import with_decompositions
from .promotion import constant_of, type_name
from .recurrent import with_whole_layers
from .sizes import Sizes, size_symbol


class AtenModule(NamedTuple):
    """A Relax module for a graph, and how its parameters map to the graph's placeholders.

    Attributes
    ----------
    mod : IRModule
        Its function `main` returns a tensor, or a tuple of several.
    inputs : tuple of int
        Positions of placeholders that it takes, in its order; the others are constants or sizes.
    numbers : tuple of int
        Positions of placeholders that are sizes of no input: for each, after the inputs, it takes a
        vector of bool of that many elements, from which the program reads the size.
    input_orders, output_orders : tuple of Order or None
        The order of axes in which it takes and returns each tensor.
    """

    mod: IRModule
    inputs: tuple[int, ...]
    numbers: tuple[int, ...]
    input_orders: tuple[Order | None, ...]
    output_orders: tuple[Order | None, ...]


def import_graph(
    graph: Any, frozen: Mapping[int, Any], outputs: Sequence[Any], in_memory_order: bool = False
) -> AtenModule:
    """Converts a graph to a Relax module that computes some of its nodes.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        A graph of ATen operators without changes in place.
    frozen : mapping of int to torch.Tensor
        Position of a placeholder -> its constant value.
    outputs : sequence of torch.fx.Node
        The tensors to return, at least one.
    in_memory_order : bool
        Whether tensors are taken and returned with their axes in the order of memory.

    Raises
    ------
    UnsupportedOperatorError
        The message names the operators without converters, or the one that cannot be converted.
    """
    needed: set[Any] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    nodes = [node for node in graph.graph.nodes if node in needed]
    refuse_unknown(nodes)
    return _Import(graph, nodes).run(frozen, outputs, in_memory_order)


class _Import:
    """The state of importing one graph."""

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
        """Imports the graph."""
        placeholders = [node for node in self.graph.graph.nodes if node.op == "placeholder"]
        parameters: dict[int, relax.Var] = {}
        orders: dict[int, Order | None] = {}
        for position, node in enumerate(placeholders):
            if position in frozen:
                if node in self.needed:
                    self.env[node] = constant_of(frozen[position])
            elif isinstance(node.meta["val"], torch.Tensor):
                value = node.meta["val"]
                orders[position] = order = memory_order(value) if in_memory_order else None
                shape = [self.sizes.of(size) for size in value.shape]
                if order is not None:
                    shape = [shape[axis] for axis in order]
                found = relax.Var(node.name, relax.TensorType(shape, type_name(value.dtype)))
                parameters[position] = self.env[node] = found
            elif node in self.needed:
                self.env[node] = self._number(node.meta["val"])
        carriers = self._carriers(placeholders, parameters.values())
        into = [memory_order(node.meta["val"]) if in_memory_order else None for node in outputs]
        arguments = [*parameters.values(), *carriers.values()]
        # Relax does not allow branches in a dataflow block.
        branches = any(_name(node) == "cond" for node in self.nodes)
        block = contextlib.nullcontext() if branches else self.builder.dataflow()
        with writing_to(self.builder), self.builder.function("main", arguments):
            with block:
                for position, order in orders.items():
                    if order is not None:
                        undone = relax.op.permute_dims(parameters[position], inverse(order))
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
                if not branches:
                    result = self.builder.emit_output(result)
            self.builder.emit_func_output(result)
        return AtenModule(
            self.builder.get(),
            tuple(parameters),
            tuple(carriers),
            tuple(orders.values()),
            tuple(into),
        )

    def _carriers(
        self, placeholders: Sequence[Any], parameters: Iterable[relax.Var]
    ) -> dict[int, relax.Var]:
        """Vectors whose lengths are the sizes that no input has, by position of placeholder."""
        shapes = [size for each in parameters for size in each.ty.shape.values]
        bound = {str(size.name) for size in shapes if isinstance(size, tirx.Var)}
        missing = sorted(self.sizes.symbols.keys() - bound)
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
        """Converts a call, also one in a branch of `cond`, and checks the type of its value."""
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
        """Refuses a value whose type differs from torch's, as its converter is then wrong."""
        expected, found = node.meta.get("val"), getattr(value, "ty", None)
        if not isinstance(expected, torch.Tensor) or not isinstance(found, relax.TensorType):
            return
        wanted = type_name(expected.dtype)
        sizes = found.shape.values if isinstance(found.shape, relax.ShapeExpr) else ()
        fits = found.ndim in (-1, len(expected.shape))
        fits = fits and not any(map(self.sizes.differ, expected.shape, sizes))
        if str(found.dtype) == wanted and fits:
            return
        raise UnsupportedOperatorError(
            f"{_described(node)} is imported as {found}, but torch makes {wanted} of shape "
            f"({', '.join(map(str, expected.shape))})"
        )

    def _number(self, value: Any) -> Any:
        return self.sizes.of(value) if isinstance(value, torch.SymInt) else value


def _name(node: Any) -> str:
    """The operator of a call, such as "add.Tensor"."""
    return node.target.__name__ if node.op == "call_function" else ""


def _described(node: Any) -> str:
    """The operator of a call for messages; for getitem, the call whose result it takes."""
    if node.target is operator.getitem:
        source, number = node.args
        return f"result {number} of {_described(source)}"
    return f"operator {_name(node)} (node {node.name!r})"


# The order of a tensor's axes in memory, if it differs from the tensor's own order.
#
# PyTorch's images may be channels-last, and results may be transposed, but TVM's kernels need
# contiguous elements. So the program takes and returns such a tensor with its axes in the order of
# memory, and permutes them inside, where the permutation often cancels.


Order = tuple[int, ...]


def memory_order(tensor: Any) -> Order | None:
    """Axes from the outermost to the innermost; None if they are in order, or cannot be ordered.

    Parameters
    ----------
    tensor : torch.Tensor
        Real or fake. The result is also None if its elements are not contiguous in any order.
    """
    shape = [_number(size) for size in tensor.shape]
    strides = [_number(stride) for stride in tensor.stride()]
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    order = sorted(axes, key=lambda axis: -strides[axis])
    inside = (order[place + 1 :] for place in range(len(order)))
    dense = [math.prod(shape[axis] for axis in behind) for behind in inside]
    if order == axes or 0 in shape or [strides[axis] for axis in order] != dense:
        return None
    # An axis of one element may be anywhere; it goes before the axis that follows it.
    for axis in reversed([axis for axis, size in enumerate(shape) if size == 1]):
        order.insert(order.index(axis + 1) if axis + 1 in order else len(order), axis)
    return tuple(order)


def inverse(order: Order) -> Order:
    """The permutation that undoes an order."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _number(size: Any) -> int:
    """A size; for a symbolic size its value in the example."""
    return size if isinstance(size, int) else int(size.node.hint)


# Import of a program of `torch.export`.


def import_program(program: Any) -> IRModule:
    """Imports an exported program; its parameters become constants.

    Parameters
    ----------
    program : torch.export.ExportedProgram

    Raises
    ------
    UnsupportedOperatorError
        The message names an operator that cannot be imported.
    ModelError
        If the program changes its inputs or buffers, or has inputs that are not tensors, or torch
        fails.
    """
    try:
        return import_core(decomposed(program))
    except TvmHybridError:
        raise
    except Exception as error:
        raise ModelError(f"this ExportedProgram cannot be imported: {error}") from error


def decomposed(program: Any) -> Any:
    """Decomposes an exported program into the operators that can be imported."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    known = {placeholders[position] for position in _constants(program)}
    with without_onednn():
        table = with_decompositions(default_decompositions())
        return program.run_decompositions(with_whole_layers(table, program.graph_module, known))


def import_core(program: Any) -> IRModule:
    """Imports a program that `decomposed` returned; raises as `import_program` does."""
    return import_graph(program.graph_module, _constants(program), _outputs(program)).mod


def _constants(program: Any) -> dict[int, Any]:
    """The values of graph inputs that callers do not pass, by position."""
    found: dict[int, Any] = {}
    for position, spec in enumerate(program.graph_signature.input_specs):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            named = program.state_dict if spec.target in program.state_dict else program.constants
            found[position] = named[spec.target]
        elif spec.kind is not InputKind.USER_INPUT:
            raise ModelError(f"input {spec.arg.name!r} of the program is a {spec.kind.name}")
    return found


def _outputs(program: Any) -> list[Any]:
    """The nodes that the program returns."""
    found = []
    nodes = next(node for node in program.graph.nodes if node.op == "output").args[0]
    for number, (spec, node) in enumerate(
        zip(program.graph_signature.output_specs, nodes, strict=True)
    ):
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
            raise ModelError(
                f"the program changes {spec.target!r} in place, which a compiled model cannot; "
                "return the new value instead"
            )
        if not isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor):
            raise ModelError(f"output {number} of the program is no tensor but {node}")
        found.append(node)
    if not found:
        raise ModelError("the program returns no tensor")
    return found


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Keeps torch from decomposing operators into oneDNN's inside the block, in any thread."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before

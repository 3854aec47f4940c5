"""An ATen graph, or a program of `torch.export`, as a Relax module: TVM's converters, ours, and a
check of what each makes.
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
        # Branches are not allowed in a block of dataflow.
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
        """Vectors that tell the sizes that no input has, by the placeholders of these."""
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
    inside = (order[place + 1 :] for place in range(len(order)))
    dense = [math.prod(shape[axis] for axis in behind) for behind in inside]
    if order == axes or 0 in shape or [strides[axis] for axis in order] != dense:
        return None
    # Axes of one element may stand anywhere: before the one that follows them.
    for axis in reversed([axis for axis, size in enumerate(shape) if size == 1]):
        order.insert(order.index(axis + 1) if axis + 1 in order else len(order), axis)
    return tuple(order)


def inverse(order: Order) -> Order:
    """The order that undoes one."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _number(size: Any) -> int:
    """A size; of a symbolic one, what it is in the example."""
    return size if isinstance(size, int) else int(size.node.hint)


# A program of `torch.export` as a Relax module.


def import_program(program: Any) -> IRModule:
    """The module of an exported program; its parameters are constants.

    Parameters
    ----------
    program : torch.export.ExportedProgram

    Raises
    ------
    UnsupportedOperatorError
        Naming an operator that cannot be imported.
    ModelError
        If it changes its inputs or buffers, has inputs that are no tensors, or torch fails.
    """
    try:
        return import_core(decomposed(program))
    except TvmHybridError:
        raise
    except Exception as error:
        raise ModelError(f"this ExportedProgram cannot be imported: {error}") from error


def decomposed(program: Any) -> Any:
    """An exported program in the operators that are imported."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    known = {placeholders[position] for position in _constants(program)}
    with without_onednn():
        table = with_decompositions(default_decompositions())
        return program.run_decompositions(with_whole_layers(table, program.graph_module, known))


def import_core(program: Any) -> IRModule:
    """The module of a program that `decomposed` returned; raises what `import_program` does."""
    return import_graph(program.graph_module, _constants(program), _outputs(program)).mod


def _constants(program: Any) -> dict[int, Any]:
    """The values of inputs of the graph that callers do not give, by their positions."""
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
    """torch does not decompose operators into oneDNN's meanwhile, in any thread."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before

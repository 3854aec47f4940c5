"""A graph of ATen operators as a callable that runs an Executable."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes
from tvm import runtime

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger

from ..api import compile
from ..executable.executable import Executable
from ..frontend.torch.importer import Order, import_graph, inverse
from ..runtime.feeds import ALIGNMENT, raise_size_error
from .options import TorchOptions
from .programs import TorchProgram

MOST_CHANGES = 8
"""After so many, parameters that change are arguments: read, and packed, at each call."""
MOST_MODULES = 64
"""So many modules of one kind, as the layers of a model, have a graph compiled for each."""


@dataclass(frozen=True)
class _Compiled:
    """An executable for parameters as they are."""

    executable: Executable
    frozen: Frozen
    gives: tuple[tuple[int, Change], ...]
    numbers: tuple[int, ...]
    takes: tuple[Change, ...]

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """The tensors that the graph computes."""
        given = [give(arguments[number]) for number, give in self.gives]
        for number in self.numbers:
            given.append(torch.empty(arguments[number], dtype=torch.bool))
        try:
            made = self.executable.main(*given)
        except Exception as error:
            raise_size_error(error)
            raise
        if len(self.takes) == 1:
            return [self.takes[0](made)]
        return [take(each) for take, each in zip(self.takes, made, strict=True)]


class GraphProgram:
    """What AOTAutograd calls with all arguments, the module's parameters among them.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        Of ATen operators.
    arguments : sequence
        What it is called with now.
    freezable : collection of int
        The positions of arguments that are to be constants.
    options : TorchOptions
        How to compile it.
    report : TorchProgram
        Is told what runs.

    Raises
    ------
    TvmHybridError
        If it cannot be compiled.
    """

    _boxed_call = True  # AOTAutograd: the arguments come as a list, which may be emptied

    def __init__(
        self,
        graph: Any,
        arguments: Sequence[Any],
        freezable: Collection[int],
        options: TorchOptions,
        report: TorchProgram,
    ) -> None:
        self._graph, self._options, self._report = graph, options, report
        self._freezable = set(freezable)
        self._results = Results(graph)
        self._lock = threading.Lock()
        self._changes = 0
        self._compiled = self._compile(arguments)
        self._variants = [self._compiled]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """The graph's results."""
        given = tuple(arguments)
        arguments.clear()
        compiled = self._compiled
        if compiled.frozen.changed(given):
            compiled = self._renewed(given)
        return self._results.of(given, compiled.run(given))

    def _renewed(self, arguments: Sequence[Any]) -> _Compiled:
        """Compiled for these parameters: those of another module, or changed ones."""
        with self._lock:
            for each in self._variants:
                if not each.frozen.changed(arguments):
                    self._compiled = each
                    return each
            current = [each for each in self._variants if not each.frozen.outdated]
            self._changes += len(self._variants) - len(current)
            self._variants = current
            self._tell(self._compiled.frozen.changed(arguments))
            self._compiled = self._compile(arguments)
            self._variants.append(self._compiled)
            return self._compiled

    def _tell(self, changed: Collection[int]) -> None:
        """Says that it is compiled again; what has changed too often is no constant any more."""
        name, count = self._report.name, len(changed)
        if self._changes < MOST_CHANGES and len(self._variants) < MOST_MODULES:
            logger.info("torch graph %s is compiled again for %d other parameters", name, count)
            return
        self._freezable -= set(changed)
        logger.warning(
            "torch graph %s: %d parameters have changed again; from now on they are read at each "
            "call, which is slower",
            name,
            count,
        )

    def _compile(self, arguments: Sequence[Any]) -> _Compiled:
        with _disable_current_modes(), torch.no_grad():
            frozen = Frozen({number: arguments[number] for number in sorted(self._freezable)})
            found = import_graph(self._graph, frozen.tensors, self._results.tensors, True)
            executable = compile(found.mod, self._options.of_compile(), keep_open=True)
        manifest = executable.manifest
        report = self._report
        report.executable, report.parameters = executable, len(self._freezable)
        report.compilations += 1
        anywhere = manifest.unaligned_inputs[: len(found.inputs)]
        inputs = zip(found.inputs, found.input_orders, anywhere, strict=True)
        outputs = zip(found.output_orders, manifest.shared_outputs, strict=True)
        return _Compiled(
            executable,
            frozen,
            tuple((number, giving(order, free)) for number, order, free in inputs),
            found.numbers,
            tuple(taking(order, shared) for order, shared in outputs),
        )


Pick = Callable[[Sequence[Any], Sequence[Any]], Any]  # (arguments, computed tensors) -> result


class Results:
    """The results of a graph of ATen operators.

    Parameters
    ----------
    graph : torch.fx.GraphModule

    Attributes
    ----------
    tensors : list of torch.fx.Node
        The tensors that have to be computed, each once.

    Raises
    ------
    CompileError
        If there are none.
    """

    def __init__(self, graph: Any) -> None:
        nodes = list(graph.graph.nodes)
        returned = nodes[-1].args[0]
        arguments = [node for node in nodes if node.op == "placeholder"]
        self.tensors: list[Any] = []
        numbers: list[Any] = []
        self._picks: list[Pick] = []
        for node in returned:
            if not isinstance(node, fx.Node):
                self._picks.append(_constant(node))
            elif node.op == "placeholder":
                self._picks.append(_argument(arguments.index(node)))
            elif not isinstance(node.meta["val"], torch.Tensor):
                numbers.append(node)
                self._picks.append(_argument(len(arguments) + len(numbers) - 1))
            else:
                if node not in self.tensors:
                    self.tensors.append(node)
                self._picks.append(_computed(self.tensors.index(node)))
        if not self.tensors:
            raise CompileError("the graph computes no tensors")
        self._numbers = _part(graph, numbers) if numbers else None

    def of(self, arguments: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """The results.

        Parameters
        ----------
        arguments : sequence
            Of the graph.
        tensors : sequence of torch.Tensor
            The values of `tensors`.
        """
        if self._numbers is not None:
            arguments = (*arguments, *self._numbers(*arguments))
        return [pick(arguments, tensors) for pick in self._picks]


def _constant(value: Any) -> Pick:
    return lambda arguments, tensors: value


def _argument(number: int) -> Pick:
    return lambda arguments, tensors: arguments[number]


def _computed(number: int) -> Pick:
    return lambda arguments, tensors: tensors[number]


def _part(graph: Any, outputs: Sequence[Any]) -> Any:
    """The part of a graph that computes some nodes, such as sizes, for torch to run."""
    part = fx.Graph()
    copies: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    part.eliminate_dead_code()  # keeps the arguments
    return fx.GraphModule(graph, part)


def why_not(graph: Any, arguments: Sequence[Any]) -> str:
    """Why a graph has to run in eager mode; "" if nothing is known against it.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        As TorchDynamo captures it.
    arguments : sequence
        What it is called with.
    """
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = list(_tensors([*arguments, *values]))
    for each in tensors:
        if each.device.type != "cpu":
            return f"it has tensors on {each.device}, and only those of CPUs are taken"
        if each.layout != torch.strided or each.is_nested:
            return "it has nested or sparse tensors"
        if each.is_conj() or each.is_neg():
            return "it has lazily conjugated or negated tensors"
    returned = [
        node.meta.get("example_value")
        for node in next(iter(graph.graph.find_nodes(op="output"))).all_input_nodes
    ]
    if torch.is_grad_enabled() and any(each.requires_grad for each in _tensors(returned)):
        return (
            "its results need gradients; for inference, call the model under torch.no_grad() or "
            "torch.inference_mode()"
        )
    return ""


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (tuple, list)):
            yield from _tensors(each)


Change = Callable[[Any], Any]


def giving(order: Order | None, anywhere: bool) -> Change:
    """How an argument becomes a tensor that kernels can read.

    Parameters
    ----------
    order : Order or None
        In which the program takes its axes.
    anywhere : bool
        Whether kernels read it wherever it lies.
    """

    def give(tensor: Any) -> Any:
        if order is not None:
            tensor = tensor.permute(order)
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.numel():  # of which torch's strides are not those that kernels expect
            return runtime.empty(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if not tensor.is_contiguous():
            return tensor.clone(memory_format=torch.contiguous_format)
        if not anywhere and tensor.data_ptr() % ALIGNMENT:
            return tensor.clone()
        return tensor

    return give


def taking(order: Order | None, shared: bool) -> Change:
    """How a result becomes the caller's tensor.

    Parameters
    ----------
    order : Order or None
        In which the program gives its axes.
    shared : bool
        Whether it may share memory with an argument, a constant or another result.
    """
    back = None if order is None else inverse(order)

    def take(result: Any) -> Any:
        tensor = result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
        if shared:
            tensor = tensor.clone()
        return tensor if back is None else tensor.permute(back)

    return take


# Parameters that a program has as constants, and whether they still are what they were.
#
# Whoever changes a tensor in place (an optimiser, `load_state_dict`) raises its version; whoever
# puts another in its place (`parameter.data = ...`) moves its memory. Changes through
# `parameter.data` in place do neither, and so stay unnoticed.


class Frozen:
    """Some arguments of a graph as they were.

    Parameters
    ----------
    tensors : mapping of int to torch.Tensor
        By their positions among the arguments.
    """

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self._owners = [weakref.ref(each) for each in tensors.values()]
        # Held, so that no other tensor gets their memory; they share their tensors' versions.
        self.tensors = {number: each.detach() for number, each in tensors.items()}
        self._marks = [
            (number, each.data_ptr(), each._version) for number, each in self.tensors.items()
        ]

    @property
    def outdated(self) -> bool:
        """Whether a tensor is gone, or is not what it was, so that none of this comes again."""
        now = [owner() for owner in self._owners]
        return any(
            each is None or each._version != version or each.data_ptr() != place
            for each, (_, place, version) in zip(now, self._marks, strict=True)
        )

    def changed(self, arguments: Sequence[Any]) -> list[int]:
        """The positions of those that are not what they were."""
        return [
            number
            for number, place, version in self._marks
            if arguments[number]._version != version or arguments[number].data_ptr() != place
        ]


def can_freeze(tensor: Any) -> bool:
    """Whether changes of a tensor can be noticed: those made in inference mode have no version."""
    return not tensor.is_inference()

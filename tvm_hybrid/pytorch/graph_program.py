"""A graph of ATen operators, compiled, as a callable over torch tensors."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger

from ..api import compile
from ..executable.executable import Executable
from ..frontend.torch.importer import import_graph, inverse
from ..options import CodeKeywords, CompileOptions, Records, check_options, given, setting_of
from ..runtime.feeds import raise_size_error
from ..runtime.threads import VARIABLE, ThreadsLike
from ..targets.resolve import TargetLike
from .programs import TorchProgram
from .tensors import Change, Updates, given_to, taken_from

MOST_CHANGES = 8
"""After this many changes, changed parameters become arguments: read, and packed, at each call."""
MOST_MODULES = 64
"""At most this many modules that share a graph, as a model's layers do, are compiled apart."""


class _Compiled(NamedTuple):
    """An executable whose frozen parameters are constants."""

    executable: Executable
    frozen: Frozen
    gives: tuple[tuple[int, Change], ...]
    numbers: tuple[int, ...]
    takes: tuple[Change, ...]
    updates: Updates

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """The tensors that the graph computes."""
        given = [give(arguments[number]) for number, give in self.gives]
        for number in self.numbers:
            given.append(torch.empty(arguments[number], dtype=torch.bool))
        try:
            made = self.updates.run(self.executable, given)
        except Exception as error:
            raise_size_error(error)
            raise
        found = [take(each) for take, each in zip(self.takes, made, strict=True)]
        for output, source in self.updates.in_place.items():
            argument = arguments[self.gives[source][0]]
            # Returning the argument itself spares AOTAutograd's copy of the result into it.
            if found[output].data_ptr() == argument.data_ptr():
                found[output] = argument
        return found


class CompiledGraph:
    """Callable for AOTAutograd, which passes all arguments, the module's parameters among them.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph of ATen operators.
    arguments : sequence
        The arguments of the first call.
    freezable : collection of int
        Positions of the arguments that become constants.
    options : TorchOptions
        How to compile the graph.
    report : TorchProgram
        Gets the executable and counts the compilations.
    updated : sequence of int
        Positions of arguments that the graph changes; the first results are their new values.

    Raises
    ------
    TvmHybridError
        If the graph cannot be compiled.
    """

    _boxed_call = True  # tells AOTAutograd to pass the arguments as a list that may be emptied

    def __init__(
        self,
        graph: Any,
        arguments: Sequence[Any],
        freezable: Collection[int],
        options: TorchOptions,
        report: TorchProgram,
        updated: Sequence[int] = (),
    ) -> None:
        self._graph, self._options, self._report = graph, options, report
        self._freezable = set(freezable)
        self._results = Results(graph)
        self._updated = self._results.updates(updated)
        self._lock = threading.Lock()
        self._changes = 0
        self._compiled = self._compile(arguments)
        self._variants = [self._compiled]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs the graph, and compiles it again if parameters have changed."""
        given = tuple(arguments)
        arguments.clear()
        compiled = self._compiled
        if compiled.frozen.changed(given):
            compiled = self._renewed(given)
        return self._results.of(given, compiled.run(given))

    def _renewed(self, arguments: Sequence[Any]) -> _Compiled:
        """The executable for these parameters: another module's, or changed ones."""
        with self._lock:
            for each in self._variants:
                if not each.frozen.changed(arguments):
                    self._compiled = each
                    return each
            current = [each for each in self._variants if not each.frozen.outdated]
            self._changes += len(self._variants) - len(current)
            self._variants = current
            changed = self._compiled.frozen.changed(arguments)
            text = "torch graph %s is compiled again for %d other parameters"
            too_often = self._changes >= MOST_CHANGES or len(self._variants) >= MOST_MODULES
            if too_often:
                self._freezable -= set(changed)
                text = (
                    "torch graph %s: %d parameters have changed again; from now on they are read "
                    "at each call, which is slower"
                )
            level = logging.WARNING if too_often else logging.INFO
            logger.log(level, text, self._report.name, len(changed))
            self._compiled = self._compile(arguments)
            self._variants.append(self._compiled)
            return self._compiled

    def _compile(self, arguments: Sequence[Any]) -> _Compiled:
        with _disable_current_modes(), torch.no_grad():
            frozen = Frozen({number: arguments[number] for number in sorted(self._freezable)})
            found = import_graph(self._graph, frozen.tensors, self._results.tensors, True)
            executable = compile(found.mod, self._options.of_compile(), keep_dynamic=True)
        manifest = executable.manifest
        report = self._report
        report.executable, report.parameters = executable, len(self._freezable)
        report.compilations += 1
        updates = Updates(
            manifest,
            {
                output: found.inputs.index(argument)
                for output, argument in self._updated.items()
                if argument in found.inputs
                and found.output_orders[output] == found.input_orders[found.inputs.index(argument)]
            },
        )
        kept = {*updates.in_place.values()}
        anywhere = [
            free and number not in kept
            for number, free in enumerate(manifest.unaligned_inputs[: len(found.inputs)])
        ]
        inputs = zip(found.inputs, found.input_orders, anywhere, strict=True)
        outputs = zip(found.output_orders, manifest.shared_outputs, strict=True)
        return _Compiled(
            executable,
            frozen,
            tuple((number, partial(given_to, order, free)) for number, order, free in inputs),
            found.numbers,
            tuple(partial(taken_from, order and inverse(order), each) for order, each in outputs),
            updates,
        )


_ARGUMENT, _COMPUTED, _CONSTANT = 0, 1, 2  # where a result is from


class Results:
    """The results of a graph of ATen operators.

    Parameters
    ----------
    graph : torch.fx.GraphModule

    Attributes
    ----------
    tensors : list of torch.fx.Node
        The computed tensors among the results, each once.

    Raises
    ------
    CompileError
        If the graph computes no tensors.
    """

    def __init__(self, graph: Any) -> None:
        nodes = list(graph.graph.nodes)
        returned = nodes[-1].args[0]
        arguments = [node for node in nodes if node.op == "placeholder"]
        self.tensors: list[Any] = []
        numbers: list[Any] = []
        self._picks: list[tuple[int, Any]] = []  # where a result is from, and its position there
        for node in returned:
            if not isinstance(node, fx.Node):
                self._picks.append((_CONSTANT, node))
            elif node.op == "placeholder":
                self._picks.append((_ARGUMENT, arguments.index(node)))
            elif not isinstance(node.meta["val"], torch.Tensor):
                numbers.append(node)
                self._picks.append((_ARGUMENT, len(arguments) + len(numbers) - 1))
            else:
                if node not in self.tensors:
                    self.tensors.append(node)
                self._picks.append((_COMPUTED, self.tensors.index(node)))
        if not self.tensors:
            raise CompileError("the graph computes no tensors")
        self._numbers = _part(graph, numbers) if numbers else None

    def updates(self, arguments: Sequence[int]) -> dict[int, int]:
        """Maps positions in `tensors` to changed arguments, if the tensor is returned only once.

        Parameters
        ----------
        arguments : sequence of int
            Positions of changed arguments; the first results are their new values.
        """
        found = [pick for pick in self._picks if pick[0] == _COMPUTED]
        return {
            pick[1]: argument
            for pick, argument in zip(self._picks, arguments, strict=False)
            if found.count(pick) == 1
        }

    def of(self, arguments: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """The results in the order of the graph.

        Parameters
        ----------
        arguments : sequence
            The graph's arguments.
        tensors : sequence of torch.Tensor
            The values of the attribute `tensors`.
        """
        if self._numbers is not None:
            arguments = (*arguments, *self._numbers(*arguments))
        sources = (arguments, tensors)
        return [
            which if place == _CONSTANT else sources[place][which] for place, which in self._picks
        ]


def _part(graph: Any, outputs: Sequence[Any]) -> Any:
    """The part of a graph that computes the given nodes, such as sizes, for torch to run."""
    part = fx.Graph()
    copies: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    part.eliminate_dead_code()  # keeps the arguments
    return fx.GraphModule(graph, part)


def refuse(graph: Any, arguments: Sequence[Any]) -> None:
    """Refuses a graph that has to run in eager mode.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        As TorchDynamo captures it.
    arguments : sequence
        The arguments of the first call.

    Raises
    ------
    CompileError
        If the graph cannot be compiled; the message says why.
    """
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    for each in _tensors([*arguments, *values]):
        if each.device.type != "cpu":
            device = each.device
            raise CompileError(f"it has tensors on {device}, and only those of CPUs are taken")
        if each.layout != torch.strided or each.is_nested:
            raise CompileError("it has nested or sparse tensors")
        if each.is_conj() or each.is_neg():
            raise CompileError("it has lazily conjugated or negated tensors")
    (output,) = graph.graph.find_nodes(op="output")
    returned = [node.meta.get("example_value") for node in output.all_input_nodes]
    if torch.is_grad_enabled() and any(each.requires_grad for each in _tensors(returned)):
        raise CompileError(
            "its results need gradients; for inference, call the model under torch.no_grad() or "
            "torch.inference_mode()"
        )


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (tuple, list)):
            yield from _tensors(each)


# Parameters that a program holds as constants, and how changes to them are noticed.
#
# Changing a tensor in place (an optimiser, `load_state_dict`) raises its version; assigning another
# tensor (`parameter.data = ...`) moves its memory. In-place changes through `parameter.data` do
# neither, so they go unnoticed.


class Frozen:
    """Some arguments of a graph as they were at compile time.

    Parameters
    ----------
    tensors : mapping of int to torch.Tensor
        The tensors by position among the arguments.
    """

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self._owners = [weakref.ref(each) for each in tensors.values()]
        # Held, so that their memory is not reused; a detached tensor shares the owner's version.
        self.tensors = {number: each.detach() for number, each in tensors.items()}
        self._marks = [
            (number, each.data_ptr(), each._version) for number, each in self.tensors.items()
        ]

    @property
    def outdated(self) -> bool:
        """Whether a tensor was freed or changed since, so that these values cannot come again."""
        now = [owner() for owner in self._owners]
        return any(
            each is None or each._version != version or each.data_ptr() != place
            for each, (_, place, version) in zip(now, self._marks, strict=True)
        )

    def changed(self, arguments: Sequence[Any]) -> list[int]:
        """Positions of the arguments that differ from the frozen tensors."""
        return [
            number
            for number, place, version in self._marks
            if arguments[number]._version != version or arguments[number].data_ptr() != place
        ]


# The options of `torch.compile(..., backend="tvm_hybrid", options={...})`.


class TorchKeywords(CodeKeywords, total=False):
    """Options of `torch.compile`; `CompileOptions` explains all but `strict`."""

    target: TargetLike
    threads: ThreadsLike
    records: Records
    strict: bool


class TorchOptions(NamedTuple):
    """Options of the backend for `torch.compile`.

    Attributes
    ----------
    compile : CompileOptions
        How graphs are compiled.
    strict : bool
        Whether a graph that would run in eager mode is an error.
    """

    compile: CompileOptions
    strict: bool = False

    def of_compile(self) -> CompileOptions:
        """Options for compiling now; torch's number of threads if none is set elsewhere."""
        options = self.compile
        if {"num_threads", "threads"} & given(options) or os.environ.get(VARIABLE):
            return options
        return replace(options, num_threads=torch.get_num_threads())


def read_options(options: Mapping[str, Any] | None, mode: str | None = None) -> TorchOptions:
    """Reads the options and checks them, before anything is compiled.

    Raises
    ------
    CompileError
        If an option or its value is unknown, or `mode` is given.
    TargetError
        If the target or the number of threads makes no sense.
    RecordError
        If a record file cannot be read.
    """
    given, known = dict(options or {}), list(TorchKeywords.__annotations__)
    if mode is not None:
        raise CompileError(
            f"the backend tvm_hybrid has no mode {mode!r}; it has the options {', '.join(known)}"
        )
    for name in given:
        if name not in known:
            raise CompileError(f"unknown option {name!r}; the known ones are {', '.join(known)}")
    strict = given.pop("strict", False)
    if not isinstance(strict, bool):
        raise CompileError(f"option 'strict' is True or False, not {strict!r}", argument="strict")
    chosen = CompileOptions(**given)
    check_options(chosen)
    setting_of(chosen, here=chosen.target is None)
    return TorchOptions(chosen, strict)

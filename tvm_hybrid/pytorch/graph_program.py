"""A graph of ATen operators as a callable that runs an Executable."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from microkernels.base.logs import logger

from ..api import compile
from ..executable.executable import Executable
from ..frontend.aten.importer import import_graph
from ..runtime.size_errors import raise_size_error
from .frozen import Frozen
from .options import TorchOptions
from .programs import TorchProgram
from .results import Results
from .tensors import Change, giving, taking

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

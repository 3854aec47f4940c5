"""A block written anew in which some values wait until somebody needs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tvm import relax

from .bindings import variables
from .graph import AnyBinding, DataflowGraph
from .rewrite import Bindings

Waiting = TypeVar("Waiting")


class WaitingBindings(Bindings, ABC, Generic[Waiting]):
    """A block under construction; a subclass says what waits, and how it is written at last.

    Parameters
    ----------
    graph : DataflowGraph
        The original block.

    Attributes
    ----------
    found : bool
        Whether anything changes; `held` sets it.
    waiting : dict
        Variables of the original block -> what stands for them.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        super().__init__()
        self.graph = graph
        self.found = False
        self.waiting: dict[relax.Expr, Waiting] = {}
        self._bound: set[relax.Expr] = set()

    @abstractmethod
    def held(self, binding: AnyBinding) -> Waiting | None:
        """What is to wait in the place of a value; None if the value is to be bound now."""

    @abstractmethod
    def written(self, waiting: Waiting) -> relax.Expr:
        """The value itself; its last operator is not bound yet."""

    def rewritten(self) -> list[relax.Binding] | None:
        """The new bindings; None if nothing changes."""
        for binding in self.graph.bindings:
            self.name = str(binding.var.name)
            held = self.held(binding)
            if held is None:
                for var in variables(binding.value):
                    self.need(var)
                self.bindings.append(binding)
                continue
            self.waiting[binding.var] = held
            if not isinstance(binding.var, relax.DataflowVar):
                self.need(binding.var)
        return self.bindings if self.found else None

    def need(self, var: relax.Expr) -> None:
        """Binds an expression if it is a variable that waits."""
        if isinstance(var, relax.Var) and var in self.waiting and var not in self._bound:
            self._bound.add(var)
            self.name = str(var.name)
            self.bind(var, self.written(self.waiting[var]))

"""Values: what expressions yield, each computed once, in the innermost loop on which it depends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .nodes import Body


@dataclass(frozen=True, eq=False)
class Value:
    """What an expression yields: on which loops it depends, and how long a chain leads to it."""

    number: int
    loops: frozenset[int] = frozenset()
    chain: tuple[int, int, int] | None = None  # loop, multiply-adds, other operations
    constant: bool = False


@dataclass(eq=False)
class Scope:
    """A loop, a branch, or the whole function, while it is read."""

    body: Body
    loop: int = -1
    fixed: bool = True  # whether nothing moves out of it
    values: dict[Any, Value] = field(default_factory=dict)
    stored: frozenset[Any] = frozenset()


class Scopes:
    """The loops and branches around what is being read, and the values computed in each."""

    def __init__(self, body: Body) -> None:
        self.stack = [Scope(body)]
        self._numbers = 0

    @property
    def inner(self) -> Scope:
        """The innermost one."""
        return self.stack[-1]

    def loop(self) -> int:
        """The innermost loop; -1 if there is none."""
        return next((scope.loop for scope in reversed(self.stack) if scope.loop >= 0), -1)

    def new(
        self,
        loops: frozenset[int],
        chain: tuple[int, int, int] | None = None,
        constant: bool = False,
    ) -> Value:
        """A value that there was not before."""
        self._numbers += 1
        return Value(self._numbers, loops, chain, constant)

    def known(self, name: Any) -> Value | None:
        """A value that was computed before and still is there."""
        for scope in reversed(self.stack):
            if name in scope.values:
                return scope.values[name]
        return None

    def place_of(self, loops: frozenset[int]) -> Scope:
        """Where a value that depends on some loops is computed."""
        for scope in reversed(self.stack):
            if scope.fixed or scope.loop in loops:
                return scope
        return self.stack[0]

    def chain(self, operands: list[Value], kind: str) -> tuple[int, int, int] | None:
        """The longest chain that leads through operands, by one operation longer."""
        loop = self.loop()
        chains = [each.chain for each in operands if each.chain and each.chain[0] == loop]
        if not chains:
            return None
        _, products, others = max(chains, key=lambda chain: (chain[1] + chain[2], chain))
        if kind in ("fma", "dot", "bf16"):
            return loop, products + 1, others
        return loop, products, others + (1 if kind else 0)

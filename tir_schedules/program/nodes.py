"""Nodes: a kernel as loops, branches, and the instructions between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .index import Index


@dataclass(frozen=True)
class Memory:
    """An array that a kernel reads or writes.

    Attributes
    ----------
    name : str
        In the kernel.
    parameter : int
        Which parameter it is; -1 if it is the kernel's own.
    size : int
        Bytes.
    shared : bool
        Whether threads see the same one.
    """

    name: str
    parameter: int
    size: int
    shared: bool = True


@dataclass(frozen=True)
class Access:
    """Bytes that one instruction reads or writes.

    Attributes
    ----------
    memory : Memory
        Where.
    start : Index
        The first byte.
    width : int
        Bytes of a piece.
    pieces, stride : int
        How many pieces, and bytes from one to the next.
    store : bool
        Whether it writes.
    """

    memory: Memory
    start: Index
    width: int
    pieces: int = 1
    stride: int = 0
    store: bool = False


@dataclass
class Work:
    """Instructions without a loop around them.

    Attributes
    ----------
    counts : Counter of str
        Instructions by kind; "products" are single multiplications with a sum.
    accesses : list of Access
        To memory.
    chains : set of (int, int)
        Multiply-adds, and other operations, of which each waits for the one before, and the first
        one for the last of the round before.
    """

    counts: Counter[str] = field(default_factory=Counter)
    accesses: list[Access] = field(default_factory=list)
    chains: set[tuple[int, int]] = field(default_factory=set)


@dataclass(eq=False)
class Body:
    """Instructions, and the loops and branches among them, in their order."""

    work: Work = field(default_factory=Work)
    children: list[Loop | Branch] = field(default_factory=list)

    @property
    def controls(self) -> frozenset[int]:
        """The loops outside on which it depends how often something in here runs."""
        found = self.__dict__.get("_controls")
        if found is None:
            found = frozenset().union(*(child.controls for child in self.children))
            self.__dict__["_controls"] = found
        return found


@dataclass(eq=False)
class Loop:
    """A loop from 0 on.

    Attributes
    ----------
    number : int
        Its name.
    extent : Index
        How many rounds it has.
    parallel : bool
        Whether threads share them.
    body : Body
        What a round does.
    anew : bool
        Whether registers that its rounds change have other values before it, which do not depend
        on what it made of them in the round before of the loop around.
    """

    number: int
    extent: Index
    parallel: bool
    body: Body
    anew: bool = False

    @property
    def controls(self) -> frozenset[int]:
        """The loops outside on which it depends how often something in here runs."""
        return self.extent.loops | (self.body.controls - {self.number})


@dataclass(eq=False)
class Branch:
    """What runs if a condition holds, and what else."""

    condition: Index
    then: Body
    otherwise: Body

    @property
    def controls(self) -> frozenset[int]:
        """The loops outside on which it depends how often something in here runs."""
        return self.condition.loops | self.then.controls | self.otherwise.controls


@dataclass(frozen=True)
class Program:
    """A kernel.

    Attributes
    ----------
    name : str
        Of its function.
    body : Body
        What it does.
    parameters : tuple of Memory
        By position.
    """

    name: str
    body: Body
    parameters: tuple[Memory, ...]

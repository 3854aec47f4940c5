"""The sizes of a model's inputs that stay open, as symbols of Relax.

    x: float32[batch, seq]                    ->  x: R.Tensor((batch, seq))
    mask: float32[batch, past + seq]          ->  mask: R.Tensor((batch, past + seq))
    y: float32[?, 3]                          ->  y: R.Tensor((y_0, 3))

Symbols of one name are one variable. What a program takes for granted of them is noted here: that
two are equal, and limits, such as the length of a table of positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import tvm_ffi
from tvm import tirx

from ..runtime.size_text import evaluate, is_relation, names_in, renamed, text_of
from .expressions import Expr

Size = int | str


def legal_names(names: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Identifiers, all different and none of those taken, for the names of dimensions."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain[:1].isalpha() or plain[:1] == "_" else f"n_{plain}"
        legal, count = plain, 1
        while legal in {*found.values(), *taken}:
            legal, count = f"{plain}_{count}", count + 1
        found[name] = legal
    return found


@dataclass
class OpenSizes:
    """The open sizes of one model while it is imported.

    Attributes
    ----------
    inputs : dict
        Input -> its sizes: numbers, names, and sums and products of names in words.
    symbols : dict
        Name -> variable.
    relations : dict
        Name of a size that has turned out to be another one in words -> that one.
    limits : list
        Sizes, and the largest numbers that they may be.
    found : int
        How many sizes depend on data so far.
    lengths : dict
        Name of a size that is a choice -> how many sizes the choice has, choices in it written out.
    """

    inputs: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    symbols: dict[str, tirx.Var] = field(default_factory=dict)
    relations: dict[str, str] = field(default_factory=dict)
    limits: list[tuple[Expr, int]] = field(default_factory=list)
    found: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: dict[str, tuple[Size, ...]]) -> OpenSizes:
        """With a variable for each name."""
        texts = [size for sizes in inputs.values() for size in sizes if isinstance(size, str)]
        names = dict.fromkeys(text for text in texts if not is_relation(text))
        return cls(dict(inputs), {name: tirx.Var(name, "int64") for name in names})

    def shape(self, name: str) -> list[Expr | int]:
        """The shape of an input."""
        return [
            size if isinstance(size, int) else evaluate(size, self.symbols)
            for size in self.inputs[name]
        ]

    def relate(self, name: str, text: str) -> None:
        """Takes a size for what another one is, in words, from now on."""
        del self.symbols[name]
        self.relations[name] = text
        for key, sizes in self.inputs.items():
            self.inputs[key] = tuple(_replaced(size, name, text) for size in sizes)
        self.limits.clear()
        self.lengths.clear()
        self.found = 0

    def unite(self, one: Expr, other: Expr) -> None:
        """Raises a RelatedSizesError if the first is a symbol that the other can stand for."""
        name = str(one.name) if isinstance(one, tirx.Var) else None
        text, known = text_of(other), {*self.symbols.values()}
        if name is None or text is None or one not in known:
            return
        if _variables(other) <= known - {one}:
            raise RelatedSizesError(name, str(text))

    def limit(self, size: Expr, most: int) -> bool:
        """Notes that a size is at most a number; False if it is not known from the inputs."""
        if not self.knows(size):
            return False
        self.limits.append((size, most))
        return True

    def knows(self, size: Expr) -> bool:
        """Whether a size is open, and one of the inputs' or follows from theirs."""
        found = _variables(size)
        return bool(found) and found <= {*self.symbols.values()}

    def known_limits(self) -> dict[str, int]:
        """Size in words -> the largest number that it may be."""
        found: dict[str, int] = {}
        for size, most in self.limits:
            text = str(text_of(size))
            found[text] = min(most, found.get(text, most))
        return found


class RelatedSizesError(Exception):
    """Two sizes meet that can only fit if one is the other: the import begins anew."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} = {text}")
        self.name = name
        self.text = text


_current: ContextVar[OpenSizes | None] = ContextVar("open sizes", default=None)


@contextmanager
def keeping(sizes: OpenSizes) -> Iterator[None]:
    """Within it, converters find the open sizes of the model."""
    token = _current.set(sizes)
    try:
        yield
    finally:
        _current.reset(token)


def current_sizes() -> OpenSizes | None:
    """Those of the model that is being imported."""
    return _current.get()


def new_size(length: int = 1) -> tirx.Var:
    """A size that depends on data, or is a choice; no other size of the model has its name.

    Passes take sizes of one name for one size. `length` is as of `OpenSizes.lengths`.
    """
    sizes = current_sizes() or OpenSizes()
    while True:
        sizes.found += 1
        name = f"found_{sizes.found}"
        if name not in sizes.symbols:
            sizes.lengths[name] = length
            return tirx.Var(name, "int64")


def length_of(*sizes: Expr) -> int:
    """How many sizes some are, choices in them written out."""
    known = current_sizes() or OpenSizes()
    return sum(known.lengths.get(var.name, 1) for size in sizes for var in _variables(size))


def _variables(size: Expr) -> set[tirx.Var]:
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(size, (tirx.Var, found.add))
    return found


def _replaced(size: Size, name: str, text: str) -> Size:
    if not isinstance(size, str) or name not in names_in(size):
        return size
    text = text if size == name else renamed(size, {name: f"({text})"})
    return text if names_in(text) else int(evaluate(text, {}))

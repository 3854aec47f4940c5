"""SymbolicSize: a dynamic size, such as a batch or a sequence.

    batch * sequence      an int whose value is a sample, equal to the same expression alone

A region with such sizes is one kernel for all of them. Estimates, default configurations and
records take the sample; kernels read the real size off their arguments (`extents`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

# Value of every symbol where a number is needed: a usual sequence length, or number of rows.
SAMPLE = 128

Monomial = tuple[str, ...]
"""Symbols that are multiplied, in order of name; () is the number 1."""
_TERM = re.compile(r"(-?\d+)?((?:\*?[A-Za-z_]\w*)*)")


class SymbolicSize(int):
    """A sum of products of symbols with numbers, which may be negative.

    As an int it is its sample. It is equal to no number, and to no size with other terms. Only `+`,
    `*` and `quotient` keep the symbols; any other arithmetic uses the sample.

    Parameters
    ----------
    terms : mapping
        Product of symbols -> its factor.

    Attributes
    ----------
    terms : dict
        The given terms, without those whose factor is 0.
    """

    terms: dict[Monomial, int]

    def __new__(cls, terms: Mapping[Monomial, int]) -> SymbolicSize:
        """The size, with its sample as value."""
        value = sum(count * SAMPLE ** len(product) for product, count in terms.items())
        self = super().__new__(cls, value)
        self.terms = {product: terms[product] for product in sorted(terms) if terms[product]}
        return self

    @staticmethod
    def of(name: str) -> SymbolicSize:
        """The size that is one symbol."""
        return SymbolicSize({(name,): 1})

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols, each once, in order."""
        return tuple(sorted({name for product in self.terms for name in product}))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicSize) and self.terms == other.terms

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))

    def __mul__(self, other: SupportsIndex) -> int:
        return _size(
            (tuple(sorted(a + b)), n * m)
            for a, n in self.terms.items()
            for b, m in _terms(other).items()
        )

    def __add__(self, other: SupportsIndex) -> int:
        return _size([*self.terms.items(), *_terms(other).items()])

    __rmul__, __radd__ = __mul__, __add__

    def __str__(self) -> str:
        return "+".join(map(_text, self.terms.items()))

    def __repr__(self) -> str:
        return f"SymbolicSize({self})"

    def __reduce__(self) -> Any:
        return SymbolicSize, (self.terms,)


def quotient(size: int, by: int) -> int | None:
    """Divides a size by another one; None if the quotient is not whole for all symbols' values.

    >>> quotient(SymbolicSize.of("n") * 384, 384) == SymbolicSize.of("n")
    True
    """
    if not isinstance(size, SymbolicSize) and not isinstance(by, SymbolicSize):
        return size // by if by and size % by == 0 else None
    names = sorted({name for each in (size, by) for term in _terms(each) for name in term})

    def order(product: Monomial) -> tuple[int, ...]:
        return (len(product), *(product.count(name) for name in names))

    divisor, found = _terms(by), []
    left = {product: count for product, count in _terms(size).items() if count}
    if not any(divisor.values()):
        return None
    first = max(divisor, key=order)
    while left:
        product = max(left, key=order)
        rest, count = _without(product, first), left[product]
        if rest is None or count % divisor[first]:
            return None
        found.append((rest, count // divisor[first]))
        taken = _size([(rest, -found[-1][1])])
        left = {p: n for p, n in _terms(_size(left.items()) + taken * by).items() if n}
    return _size(found)


def _without(product: Monomial, factors: Monomial) -> Monomial | None:
    """A product without some of its factors; None if it lacks one of them."""
    left = list(product)
    for name in factors:
        if name not in left:
            return None
        left.remove(name)
    return tuple(left)


def size_text(size: int) -> int | str:
    """A size for JSON: a number, or the text of a symbolic one."""
    return str(size) if isinstance(size, SymbolicSize) else size


def size_from(value: int | str) -> int:
    """The size that `size_text` wrote; ValueError for another text."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    found = []
    for term in value.replace(" ", "").split("+"):
        match = _TERM.fullmatch(term)
        if match is None or not term:
            raise ValueError(f"{value!r} is no size; one is written as 3*batch*sequence+1")
        number, names = match.groups()
        product = tuple(sorted(name for name in (names or "").split("*") if name))
        found.append((product, int(number or 1)))
    return _size(found)


def is_dynamic(shape: Iterable[int]) -> bool:
    """Whether a shape has a symbolic size.

    >>> is_dynamic((1, 128))
    False
    """
    return any(isinstance(size, SymbolicSize) for size in shape)


def may_be_negative(size: int) -> bool:
    """Whether a sum can be less than 0; symbols cannot.

    >>> may_be_negative(size_from("total+-1*n")), may_be_negative(size_from("past+1"))
    (True, False)
    """
    return any(count < 0 for count in _terms(size).values())


def evaluated(size: int, values: Mapping[str, int]) -> int:
    """A size for given values of its symbols."""
    terms = _terms(size).items()
    return sum(count * math.prod(values[name] for name in product) for product, count in terms)


def _terms(size: SupportsIndex) -> dict[Monomial, int]:
    return size.terms if isinstance(size, SymbolicSize) else {(): int(size)}


def _size(terms: Iterable[tuple[Monomial, int]]) -> int:
    """The sum of terms; a plain number if no symbol remains."""
    found: dict[Monomial, int] = {}
    for product, count in terms:
        found[product] = found.get(product, 0) + count
    found = {product: count for product, count in found.items() if count}
    if set(found) <= {()}:
        return found.get((), 0)
    return SymbolicSize(found)


def _text(term: tuple[Monomial, int]) -> str:
    product, count = term
    factors = ([str(count)] if count != 1 or not product else []) + list(product)
    return "*".join(factors)

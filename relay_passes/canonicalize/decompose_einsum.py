"""Decompose: an einsum of two tensors becomes a product, with what it needs around it.

Before

    gv = R.einsum((x, w), subscripts="bhd,hde->bhe")

After

    lv = R.permute_dims(x, [1, 0, 2])               # h | b | d
    lv1 = R.matmul(lv, w)                           # h | b | e
    gv = R.permute_dims(lv1, [1, 0, 2])

Letters of both operands and of the result are batches, those of both operands alone are summed by
the product, and others by a sum before. Several letters of a kind are joined by reshapes. Diagonals
("ii"), ellipses, and einsums of more tensors stay. torch decomposes its einsums in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor
from relay_passes.ir.rewrite import Bindings, value_pass


def decompose_einsum() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.decompose_einsum", _decomposed)


@dataclass(frozen=True)
class _Lettered:
    """A tensor and the letters of its axes."""

    value: relax.Expr
    letters: str

    def sizes(self) -> dict[str, Any]:
        """The size of each letter."""
        return dict(zip(self.letters, self.value.ty.shape.values, strict=True))

    def summed(self, block: Bindings, kept: str) -> _Lettered:
        """The sum over letters that are not kept."""
        axes = [axis for axis, letter in enumerate(self.letters) if letter not in kept]
        if not axes:
            return self
        rest = "".join(letter for letter in self.letters if letter in kept)
        return _Lettered(block.emit(relax.op.sum(self.value, axes)), rest)

    def ordered(self, block: Bindings, letters: str) -> _Lettered:
        """The same with its axes in another order."""
        if letters == self.letters:
            return self
        order = [self.letters.index(letter) for letter in letters]
        return _Lettered(block.emit(relax.op.permute_dims(self.value, order)), letters)


def _decomposed(_graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The last of the operators that an einsum becomes; None if it stays."""
    if not is_call(call, "relax.einsum") or not isinstance(call.args[0], relax.Tuple):
        return None
    text = str(call.attrs.subscripts).replace(" ", "")
    inputs, arrow, result = text.partition("->")
    letters = inputs.split(",")
    if not arrow or len(letters) != 2 or "." in text or len(call.args[0].fields) != 2:
        return None
    tensors = [region_tensor(each) for each in call.args[0].fields]
    if any(len(set(each)) < len(each) for each in (*letters, result)):
        return None
    for tensor, each in zip(tensors, letters, strict=True):
        if tensor is None or len(tensor.shape) != len(each):
            return None
    a, b = (_Lettered(*each) for each in zip(call.args[0].fields, letters, strict=True))
    if any(int(size) == 1 for each in (a, b) for size in each.sizes().values() if _known(size)):
        return None  # an extent of one may be repeated
    return _product(block, a, b, result)


def _known(size: Any) -> bool:
    return hasattr(size, "value")


def _product(block: Bindings, a: _Lettered, b: _Lettered, result: str) -> relax.Expr:
    """The product of two tensors, with its axes in the order of the result."""
    a = a.summed(block, result + b.letters)
    b = b.summed(block, result + a.letters)
    sizes = a.sizes() | b.sizes()
    shared = [letter for letter in a.letters if letter in b.letters]
    batches = "".join(letter for letter in result if letter in shared)
    inner = "".join(letter for letter in shared if letter not in result)
    rows = "".join(letter for letter in result if letter not in b.letters)
    columns = "".join(letter for letter in result if letter not in a.letters)

    def joined(tensor: _Lettered, groups: Sequence[str]) -> relax.Expr:
        value = tensor.ordered(block, batches + "".join(groups)).value
        if all(len(group) == 1 for group in groups):
            return value
        shape = [sizes[letter] for letter in batches]
        return block.emit(relax.op.reshape(value, shape + [_joint(sizes, each) for each in groups]))

    value = relax.op.matmul(joined(a, (rows, inner)), joined(b, (inner, columns)))
    letters = batches + rows + columns
    if len(rows) != 1 or len(columns) != 1:
        value = relax.op.reshape(block.emit(value), [sizes[letter] for letter in letters])
    if letters != result:
        order = [letters.index(letter) for letter in result]
        value = relax.op.permute_dims(block.emit(value), order)
    return value


def _joint(sizes: dict[str, Any], letters: str) -> Any:
    """The size of some axes as one."""
    size: Any = 1
    for letter in letters:
        size = size * sizes[letter]
    return size

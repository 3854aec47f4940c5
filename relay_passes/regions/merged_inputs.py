"""Inputs of a merged region: what its parts read from outside, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm import relax

from tir_schedules.core.attributes import Source
from tir_schedules.core.region import Region, Tensor


@dataclass
class MergedInputs:
    """Inputs under construction.

    Attributes
    ----------
    made : dict
        Variable -> number of the part whose result it is.
    arguments, tensors : list
        What comes from outside, and its tensors.
    sources : list
        Where the inputs and operands of each part come from.
    """

    made: dict[relax.Expr, int] = field(default_factory=dict)
    arguments: list[relax.Expr] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    sources: list[list[Source]] = field(default_factory=list)
    _numbers: dict[relax.Expr, int] = field(default_factory=dict)

    def add(self, part: Region, arguments: Sequence[relax.Expr]) -> None:
        """Takes a part with what its inputs and operands stand for."""
        pairs = zip(arguments, (*part.inputs, *part.operands), strict=True)
        self.sources.append([self._source(argument, tensor) for argument, tensor in pairs])

    def region(self, kind: str, parts: Sequence[Region]) -> Region:
        """The merged region."""
        return Region(
            op=kind,
            inputs=tuple(self.tensors),
            output=parts[-1].output,
            attrs={"sources": tuple(map(tuple, self.sources))},
            parts=tuple(parts),
        )

    def _source(self, argument: relax.Expr, tensor: Tensor) -> Source:
        """Every constant is an input of its own: parts have it packed each in their way."""
        if argument in self.made:
            return Source(True, self.made[argument])
        if argument in self._numbers:
            return Source(False, self._numbers[argument])
        number = len(self.tensors)
        if isinstance(argument, relax.Var):
            self._numbers[argument] = number
        self.arguments.append(argument)
        self.tensors.append(tensor)
        return Source(False, number)

"""Parameters that a program has as constants, and whether they still are what they were.

Whoever changes a tensor in place (an optimiser, `load_state_dict`) raises its version; whoever puts
another in its place (`parameter.data = ...`) moves its memory. Changes through `parameter.data`
in place do neither, and so stay unnoticed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any


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

"""Sizes that depend on data, and turn out not to fit when the model runs."""

from __future__ import annotations

from microkernels.base.errors import BY_ZERO, OUT_OF_RANGE, FeedError
from microkernels.base.tvm_compat.runtime import is_size_error


def raise_size_error(error: Exception) -> None:
    """Raises the error in our words, if a check of sizes raised it.

    Raises
    ------
    FeedError
        Saying what may have gone wrong: TVM does not tell the node, but a check of indices does.
    """
    if OUT_OF_RANGE in str(error):
        place = str(error).index(OUT_OF_RANGE)
        raise FeedError(str(error)[place:].splitlines()[0]) from error
    if is_size_error(error) or BY_ZERO in str(error):
        raise FeedError(
            "the inputs' values make sizes that do not fit the model: operands of other sizes, a "
            "reshape to another number of elements, a size below 0, more elements than there are, "
            "a step of 0, or a size divided by another one that is 0"
        ) from error

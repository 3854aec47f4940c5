"""Old names of arguments and properties: they work for one release, with a warning.

In: an object with a new name, and its old name. Out: the object, which takes both names. A
DeprecationWarning names the new one and points at the caller's line.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# Frames that are not the caller's: our own, and those of dataclasses.replace.
OURS = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid", "dataclasses")


def warn_renamed(old: str, new: str) -> None:
    """Warns that `old` is now `new`, at the innermost line that is not ours."""
    level, frame = 1, sys._getframe()
    while _is_ours(frame) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in OURS


def with_new_names(keywords: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Keywords under their new names.

    An old name replaces a new one beside it: `dataclasses.replace` always passes all fields.

    Parameters
    ----------
    keywords : mapping
        What a caller gave.
    renamed : mapping
        Old name -> new name.
    """
    found = dict(keywords)
    for old, new in renamed.items():
        if old in found:
            warn_renamed(old, new)
            found[new] = found.pop(old)
    return found


def old_arguments(**renamed: str) -> Callable[[F], F]:
    """Makes a decorator for a function or a class that also takes old names, as keywords.

    Parameters
    ----------
    **renamed : str
        Old name = new name.
    """

    def decorate(owner: F) -> F:
        inner: Callable[..., Any] = vars(owner)["__init__"] if isinstance(owner, type) else owner

        @functools.wraps(inner)
        def outer(*arguments: Any, **keywords: Any) -> Any:
            if not renamed.keys().isdisjoint(keywords):
                keywords = with_new_names(keywords, renamed)
            return inner(*arguments, **keywords)

        if not isinstance(owner, type):
            return outer  # type: ignore[return-value]
        type.__setattr__(owner, "__init__", outer)
        return owner

    return decorate


def old_property(old: str, new: str) -> property:
    """A property under its old name."""

    def read(self: Any) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    return property(read, doc=f"Old name of `{new}`, for one release.")

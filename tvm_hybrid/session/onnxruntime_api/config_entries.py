"""Options that ONNX Runtime keeps as pairs of texts."""

from __future__ import annotations

from microkernels.base.errors import OptionError


def add_entry(entries: dict[str, str], key: str, value: str) -> None:
    """Adds a pair, or replaces it.

    Raises
    ------
    TypeError
        If one of them is no text; as in ONNX Runtime.
    """
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"keys and values of options are texts, not {key!r}: {value!r}")
    entries[key] = value


def entry(entries: dict[str, str], key: str) -> str:
    """The value that was added.

    Raises
    ------
    OptionError
        If none was.
    """
    if key not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise OptionError(f"no value was added for {key!r}; there are {known}")
    return entries[key]

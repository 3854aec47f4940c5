"""Lists of CPUs as Linux writes them: `0-3,8`."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 1 << 16  # more numbers than CPUs of Linux: what comes after it is a slip


def parse_cpus(text: str) -> tuple[int, ...]:
    """The numbers of a list, in its order.

    Raises
    ------
    ValueError
        If it is no such list.
    """
    found: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.strip().partition("-")
        low, high = _number(first), _number(last if dash else first)
        if high < low:
            raise ValueError(f"{part!r} counts down")
        found += range(low, high + 1)
    return tuple(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list of these numbers, rising."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) >= _MOST:
        raise ValueError(f"{text!r} is no number of a CPU")
    return int(text)

"""Distances of rows that tile registers load: not those at which lines displace each other.

L1 has 64 sets of lines. Rows that are 2048 bytes apart lie in two of them, and rows 4096 bytes
apart in one: 16 rows of a tile are more than the 12 lines that a set holds.
"""

from __future__ import annotations

_CROWDED = 2048
_LINE = 64  # bytes
# oneDNN copies A (brgemm matmul, `use_buffer_a`) where K is a power of two from 4096 bytes on and
# there are so many rows. A copy has to pay by as many columns.
_FAR, _MANY_ROWS, _MANY_COLUMNS = 4096, 1024, 512


def uncrowded(elements: int, item: int) -> int:
    """A distance of rows of our own choice: a line more where rows would share few sets.

    >>> uncrowded(4096, 1), uncrowded(4032, 1), uncrowded(1024, 2)
    (4160, 4032, 1056)
    """
    return elements + _LINE // item * (elements * item % _CROWDED == 0)


def worth_copying(pitch: int, item: int, rows: int, columns: int) -> bool:
    """Whether rows of A that lie so far apart are copied to another distance before they are read.

    Parameters
    ----------
    pitch, item : int
        Elements from one row to the next, and bytes of one.
    rows, columns : int
        Of the product.
    """
    many = rows >= _MANY_ROWS and columns >= _MANY_COLUMNS
    return many and pitch * item % _FAR == 0

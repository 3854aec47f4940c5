"""Keeps copies of one exported library from being unloaded.

A library registers its loader with TVM when it is opened, under a name that its copies share: the
last one that was opened has it. Were that one unloaded while another copy is still open, nobody
would register anew, and the name would lead to memory that is gone.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

_paths: dict[str, set[str]] = {}
_lock = threading.Lock()


def pin_copies(digest: str, path: str) -> None:
    """Pins a library that is about to be opened, for as long as the process lives, if a copy was.

    Parameters
    ----------
    digest : str
        What tells the library from all but its copies.
    path : str
        The file.
    """
    with _lock:
        known = _paths.setdefault(digest, set())
        known.add(path)
        if len(known) > 1:
            ctypes.CDLL(path)  # which is never closed


def loader_name(path: Path) -> str:
    """A name by which the dynamic loader opens just this file.

    It takes a file whose name it knows for the library that it opened by that name, and would not
    see that the file has been replaced since. It looks at inodes only where it does not know the
    name.

    The path of a file, written in a way that tells its inode.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        Its absolute path. Before the last part, "//" stands for a 0 of the inode's number and "/./"
        for a 1; both mean what "/" does.

    Raises
    ------
    OSError
        If there is no such file.
    """
    resolved = path.resolve()
    number = f"{resolved.stat().st_ino:b}"
    return f"{resolved.parent}/{number.replace('0', '/').replace('1', './')}{resolved.name}"

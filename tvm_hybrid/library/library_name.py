"""A name by which the dynamic loader opens just this file.

It takes a file whose name it knows for the library that it opened by that name, and would not see
that the file has been replaced since. It looks at inodes only where it does not know the name.
"""

from __future__ import annotations

from pathlib import Path


def loader_name(path: Path) -> str:
    """The path of a file, written in a way that tells its inode.

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

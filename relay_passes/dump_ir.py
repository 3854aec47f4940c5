"""Writes a module after every pass into a folder: 000_Normalize.py, 001_FoldConstant.py, ...

If a file cannot be written, this is an error; TVM's own instrument of this name only warns.
"""

from __future__ import annotations

import re
from pathlib import Path

from tvm import IRModule
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassInfo

from microkernels.base.errors import OutputError
from microkernels.base.files import require_room, why_not_written


def require_folder(folder: Path) -> None:
    """Makes a folder for dumps, and finds out whether it can be written to.

    Raises
    ------
    OutputError
        If it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_room(folder)
    except OSError as error:
        raise OutputError(why_not_written(folder, error, "the IR to")) from error


@pass_instrument
class DumpIR:
    """The instrument.

    Parameters
    ----------
    folder : Path
        Made if it is not there.

    Raises
    ------
    OutputError
        If a file cannot be written; of that file, nothing stays.
    """

    def __init__(self, folder: Path) -> None:
        require_folder(folder)
        self._folder = folder
        self._count = 0

    def run_after_pass(self, mod: IRModule, info: PassInfo) -> None:
        """Writes one file."""
        name = re.sub(r'[<>:"/\\|?*]', "_", str(info.name))
        path = self._folder / f"{self._count:03d}_{name}.py"
        self._count += 1
        try:
            text = mod.script()
        except Exception as error:  # there is IR that TVM does not print
            text = f"# TVM cannot print it: {error}\n"
        try:
            path.write_text(text, encoding="utf-8")
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise OutputError(why_not_written(path, error, "the IR to")) from error
            raise

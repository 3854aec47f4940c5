"""Runs tutorials, and stores in each what its cells put out.

    python -m tools.notebooks                   # all
    python -m tools.notebooks quickstart        # one; pytorch with .venv/torch/bin/python

The pictures and numbers are those of the CPU that runs them; the first cell of each names it.
Run them on an idle machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SECONDS = 600  # that one cell may take


def store_outputs(path: Path) -> None:
    """Runs a notebook and writes it with its outputs.

    Parameters
    ----------
    path : Path
        The notebook; it stays as it was if a cell fails.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If one fails.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
    )
    client.execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        print(name)
        store_outputs(FOLDER / f"{name}.ipynb")

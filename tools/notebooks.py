"""Runs tutorials, and stores the outputs of their cells in them.

    python -m tools.notebooks                   # all
    python -m tools.notebooks quickstart        # one; pytorch with .venv/torch/bin/python

Pictures and numbers are those of the CPU that runs them, which the first cell of each names.
Run them on an idle machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SECONDS = 600  # time limit of a cell


def store_outputs(path: Path) -> None:
    """Runs a notebook and writes it with its outputs; it stays unchanged if a cell fails.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
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

"""Runs the tutorials and stores their outputs in the notebooks.

    python -m tools.notebooks                   # all
    python -m tools.notebooks quickstart        # one; pytorch with .venv/torch/bin/python

Stored pictures and numbers are measured on this CPU, which the first cell of a notebook names.
Run notebooks on an idle machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

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
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def is_progress(output: NotebookNode) -> bool:
    """Whether an output is tvm_hybrid's report about a slow compilation, which varies with load."""
    return output.get("name") == "stderr" and output.text.startswith("tvm_hybrid: compiling ")


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        print(name)
        store_outputs(FOLDER / f"{name}.ipynb")

"""Figures without a display, by matplotlib, which is an extra."""

from __future__ import annotations

import os
from typing import Any

from microkernels.base.errors import ConfigError
from microkernels.base.output_file import replacing

# Distinct also for those who see few colours (Okabe and Ito's palette).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure; width and height in inches.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib, which is not installed; pip install 'tvm_hybrid[viz]' brings it"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure in the format that the name's ending tells.

    Raises
    ------
    ConfigError
        If the file cannot be written, or there is no such format.
    """
    try:
        with replacing(path, ConfigError, "the plot") as draft:
            figure.savefig(draft, dpi=110)
    except ValueError as error:  # there is no such format
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot write the plot {path}: {error}") from error

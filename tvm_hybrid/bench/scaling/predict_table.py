"""Tables of predictions; every title and every column says that nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from microkernels.amx.scoreboard import LEVELS

from .predict import LABEL, PredictedProduct, PredictReport

_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k"))


def predict_tables(report: PredictReport) -> list[Table]:
    """Tables of the kernels, of the products, and of the regions without a prediction."""
    about = report.model or "layers of BERT-base with 128 tokens, and squares,"
    tables = [
        _table(f"AMX kernels on {report.cpu}, full blocks, K = 1024", report.kernels),
        _table(f"{about} on {report.cpu}, one thread's part of each product", report.products),
    ]
    if report.without_prediction:
        left = Table(title="without a prediction", title_justify="left")
        for column in ("region", "why"):
            left.add_column(column, overflow="fold")
        for region in report.without_prediction:
            left.add_row(Text(region.name), Text(region.reason))
        tables.append(left)
    return tables


def _table(title: str, products: Sequence[PredictedProduct]) -> Table:
    table = Table(title=f"{title}: {LABEL}", title_justify="left", caption=LABEL)
    table.add_column("product", overflow="fold")
    for column in ("kernel", "m x n x k"):
        table.add_column(column, no_wrap=True)
    for column in ("cycles", "% of peak", "loads", "TDPs", "stores"):
        table.add_column(f"predicted\n{column}", justify="right", no_wrap=True)
    table.add_column(f"predicted bytes\n{'/'.join(LEVELS)}", justify="right", no_wrap=True)
    for product in products:
        counts = product.predicted_instructions
        times = f"{product.copies} x " if product.copies > 1 else ""
        table.add_row(
            Text(product.name),
            Text(product.kernel),
            f"{times}{product.m}x{product.n}x{product.k}",
            f"{product.predicted_cycles:.0f}",
            f"{product.predicted_share_of_peak:.0%}",
            str(counts["tileloadd"]),
            str(sum(count for name, count in counts.items() if name.startswith("tdp"))),
            str(counts["tilestored"]),
            "/".join(_bytes(product.predicted_bytes_loaded[level]) for level in LEVELS),
        )
    return table


def _bytes(count: int) -> str:
    """A number of bytes in two or three digits."""
    for unit, letter in _UNITS:
        if count >= unit:
            value = count / unit
            return f"{value:.1f}{letter}" if value < 10 else f"{value:.0f}{letter}"
    return str(count)

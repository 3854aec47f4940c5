"""Results of a benchmark as a table of comma-separated values, one line for each contestant."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict

import msgspec

from .bench import BenchReport
from .throughput import ThroughputReport


def bench_csv(report: BenchReport | ThroughputReport) -> str:
    """The rows, with their model; times are in microseconds, and what is not known is empty.

    Parameters
    ----------
    report : BenchReport or ThroughputReport
        What was measured.

    Returns
    -------
    str
        Lines with the names of the columns first.
    """
    lines = []
    for row in report.rows:
        fields = {"model": report.model, "threads": report.threads, **msgspec.structs.asdict(row)}
        timing = fields.pop("timing")
        fields |= asdict(timing) if timing is not None else {}
        if "kernels" in fields:
            fields["kernels"] = len(fields["kernels"]) or None
        lines.append(fields)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()

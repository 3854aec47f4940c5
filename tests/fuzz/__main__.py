"""Compares random graphs with reference results: `python -m tests.fuzz`.

It ends after a time or a number of graphs, with 1 if there are findings.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from .campaign import Campaign
from .motifs import KINDS


def main() -> int:
    """Runs the command; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="seconds until it stops")
    parser.add_argument(
        "--graphs", type=int, default=0, help="largest number of graphs; 0: no limit"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the first graph; default: random"
    )
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="families of graphs, with commas; default: all"
    )
    parser.add_argument(
        "--findings", type=Path, default=Path("build/fuzz"), help="folder for the findings"
    )
    chosen = parser.parse_args()
    kinds = chosen.kinds.split(",")
    unknown = set(kinds).difference(KINDS)
    if unknown:
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}; choose from {', '.join(KINDS)}")
    seed = random.randrange(10**6) * 10**4 if chosen.seed is None else chosen.seed
    print(f"the first seed is {seed}", flush=True)
    campaign = Campaign(kinds, chosen.findings)
    end = time.monotonic() + chosen.seconds
    campaign.run(seed, lambda: time.monotonic() > end, chosen.graphs)
    print(campaign.report())
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())

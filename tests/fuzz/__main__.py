"""`python -m tests.fuzz`: draws and examines graphs, for some time or up to a number of graphs."""

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
    parser.add_argument("--seconds", type=float, default=600, help="when to stop")
    parser.add_argument("--graphs", type=int, default=0, help="number of graphs; 0: no limit")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; default: random")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which families of graphs")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="where to write")
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

"""Finds the processes that a process has started."""

from __future__ import annotations

from pathlib import Path


def children(pid: int) -> list[int]:
    """Children that the threads of a process have started; threads may end meanwhile."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text(encoding="utf-8").split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found

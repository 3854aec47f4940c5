"""How much CPU time this process may take: its CPUs, and the quotas of its control groups.

Containers with `--cpus` have such a quota. Linux stops all threads of a group that has used its
time up until the next period begins, so more busy threads than the quota has CPUs gain nothing.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

_GROUPS = "proc/self/cgroup"


@dataclass(frozen=True)
class Quota:
    """A control group's limit of CPU time, such as that of a container with `--cpus`.

    Attributes
    ----------
    cpus : float
        CPU time over elapsed time.
    file : Path
        The file that states it.
    """

    cpus: float
    file: Path

    @property
    def nearest(self) -> int:
        """The nearest whole number of CPUs, at least 1."""
        return max(1, int(self.cpus + 0.5))


def busy_cpus() -> int:
    """The most threads or processes that this process keeps busy while it compiles.

    One for each logical CPU that the calling thread may use; the nearest number of CPUs of a quota
    of CPU time, at least 1, if that is fewer.
    """
    cpus, quota = len(os.sched_getaffinity(0)), host_quota()
    return cpus if quota is None else min(cpus, quota.nearest)


@functools.cache
def host_quota() -> Quota | None:
    """The quota of this process, as it was at the first call."""
    return read_quota(Path("/"))


def read_quota(root: Path) -> Quota | None:
    """The smallest quota of CPU time of the process's control groups and their parents.

    In a container the path of a group may be the host's; the folder that is mounted is then the
    group itself. So folders that do not exist are skipped, and the topmost folder is read as well.
    """
    found: list[Quota] = []
    for line in text_of(root / _GROUPS).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        second = not controllers  # version 2 has one line without a name
        if not second and "cpu" not in controllers.split(","):
            continue
        names = ("", "unified") if second else ("cpu", controllers)
        for top in (root / "sys/fs/cgroup" / name for name in names):
            group = top / path.strip("/")
            for folder in (group, *group.parents[: len(group.parts) - len(top.parts)]):
                found += _quota_of_2(folder) if second else _quota_of_1(folder)
    return min(found, key=lambda quota: quota.cpus, default=None)


def _quota_of_2(folder: Path) -> list[Quota]:
    quota, _, period = text_of(folder / "cpu.max").strip().partition(" ")
    return _quotas(quota, period, folder / "cpu.max")


def _quota_of_1(folder: Path) -> list[Quota]:
    file = folder / "cpu.cfs_quota_us"
    return _quotas(text_of(file).strip(), text_of(folder / "cpu.cfs_period_us").strip(), file)


def _quotas(quota: str, period: str, file: Path) -> list[Quota]:
    """Returns no quota if it is "max" or -1, or if there is no such file."""
    if not (quota.isdigit() and period.isdigit() and int(quota) and int(period)):
        return []
    return [Quota(int(quota) / int(period), file)]


def text_of(path: Path) -> str:
    """The text of a file of Linux; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""

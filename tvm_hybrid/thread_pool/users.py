"""Programs that want the workers of the pool awake, for as long as these programs live."""

from __future__ import annotations

import weakref

from ..affinity.pool_setting import PoolSetting
from .native import installed
from .spin import ALWAYS


def note_user(program: object, setting: PoolSetting) -> None:
    """Lets workers stay awake between the runs of a program, if its setting says so."""
    if setting.spin != ALWAYS or setting.count == 1:
        return
    pool = installed()
    if pool is not None:
        pool.add_always(1)
        weakref.finalize(program, pool.add_always, -1).atexit = False

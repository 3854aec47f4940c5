"""For how long threads of the pool wait awake: the values of the option `spin`."""

from __future__ import annotations

import os

from microkernels.base.errors import Argument, TargetError

RUN = "run"
ALWAYS = "always"
NEVER = "never"
SPINS = (RUN, ALWAYS, NEVER)  # in the order of the numbers in pool.c
VARIABLE = "TVM_HYBRID_SPIN"
_OF_TVM = "TVM_THREAD_POOL_SPIN_COUNT"


def resolve_spin(spin: str | None) -> str:
    """How threads wait.

    Parameters
    ----------
    spin : {"run", "always", "never"} or None
        None: what TVM_HYBRID_SPIN says; else "never" if TVM_THREAD_POOL_SPIN_COUNT is 0, by which
        TVM's own pool does not spin; else "run".

    Raises
    ------
    TargetError
        If there is no such value.
    """
    named: str | Argument = Argument("spin")
    value = spin
    if value is None:
        named, value = VARIABLE, os.environ.get(VARIABLE, "")
    if not value and spin is None:
        return NEVER if os.environ.get(_OF_TVM) == "0" else RUN
    if value not in SPINS:
        known = ", ".join(map(repr, SPINS))
        raise TargetError(named, f" must be one of {known}, not {value!r}")
    return value

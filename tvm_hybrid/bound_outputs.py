"""Which outputs a program can write into memory of the caller."""

from __future__ import annotations

from tvm import IRModule

from relay_passes.entries import INTO_ENTRY
from relay_passes.lower.into_entry import INTO_OUTPUTS

from .manifest import BoundOutput


def bound_outputs(mod: IRModule) -> tuple[BoundOutput, ...]:
    """What the entry for such outputs takes; nothing if a lowered module has none."""
    if INTO_ENTRY not in [gvar.name_hint for gvar in mod.get_global_vars()]:
        return ()
    notes = mod[INTO_ENTRY].attrs[INTO_OUTPUTS]
    return tuple(
        BoundOutput(number, cache if cache >= 0 else None, bool(anywhere), bool(has_room))
        for number, cache, anywhere, has_room in (map(int, note) for note in notes)
    )

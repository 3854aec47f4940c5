"""What kind of instruction a call in TIR becomes."""

from __future__ import annotations

# Pieces of names of intrinsics, and what they are; the first that fits.
_INTRINSICS = (
    ("x86.tdp", "tile_product"),
    ("dpbf16", "bf16"),
    ("dpbusd", "dot"),
    ("dpwssd", "dot"),
    ("pmaddubs", "dot"),
    ("pmadd.ubs", "dot"),
    ("pmaddw", "dot"),
    ("tileload", "tile_load"),
    ("tilestore", "tile_store"),
    ("tilezero", "tile_zero"),
    ("tilerelease", "tile_release"),
    ("amx_configure", "tile_configure"),
    ("amx_permi", "permission"),
    ("hybrid_arrive", "arrival"),
    ("prefetch", "prefetch"),
    ("sqrt", "divide"),
    ("fma", "fma"),
)
LIBRARY = ("tirx.exp", "tirx.log", "tirx.tanh", "tirx.erf", "tirx.pow", "tirx.sigmoid", "tirx.sin")


def kind_of(name: str) -> str:
    """The kind of an intrinsic or of a function of ours; any other one works on vectors."""
    return next((kind for part, kind in _INTRINSICS if part in name), "vector")

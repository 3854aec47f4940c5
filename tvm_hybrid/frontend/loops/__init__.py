"""Loops that stay loops: one body, run as often as the data or a large number says.

In: a node Repeat of our own domain, which rewrites write. Out: Relax functions, one of which calls
itself. The body is a graph and a function of its own, so its operators form regions like others.
"""

from .body_graph import add_body, is_repeat
from .own_sizes import OwnSizes
from .recursion import Loop, repeat

__all__ = ["Loop", "OwnSizes", "add_body", "is_repeat", "repeat"]

"""Which operators become one kernel.

In: a block of operators. Out: functions that hold an anchor with all that is fused with it, and
regions merged from several.
"""

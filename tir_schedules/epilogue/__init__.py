"""The epilogue: what happens to accumulators before they are stored, for every template.

In: accumulators in registers, and the steps that passes have fused. Out: stored results.
"""

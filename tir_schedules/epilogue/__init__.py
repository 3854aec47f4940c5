"""What happens to accumulators before they are stored: one emitter for every template.

In: accumulators in registers, and the steps that passes have fused. Out: stored results.
"""

"""8-bit integers: what they hold, and what is added to make signed ones unsigned."""

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
SHIFT = 128
"""int8 plus this is uint8, and uint8 less this is int8; their highest bits differ, nothing else."""

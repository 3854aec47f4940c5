"""Which configuration to measure next.

In: the space of a region's configurations, and what was measured so far. Out: the next candidates.
`strategies` holds the searches, one file each; `features` describes configurations to the cost
model.
"""

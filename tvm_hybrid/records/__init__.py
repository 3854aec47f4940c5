"""Record files: measurements, one JSON object a line.

In: records of configurations, of layouts and of arrangements. Out: files that survive crashes and
several writers, and `RecordStore`, which finds records by region. Also merges, checks and rewrites
files.
"""

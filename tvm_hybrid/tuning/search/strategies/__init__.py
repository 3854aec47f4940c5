"""Search strategies: one file each, behind the interface of `strategy`."""

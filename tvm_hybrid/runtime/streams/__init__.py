"""Requests to a session that run side by side, each on its share of the threads.

`requests` is one that waits, `stream_threads` are the queue and the threads that serve it,
`async_runs` is what a session offers of it.
"""

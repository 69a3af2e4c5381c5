"""Tick records on disk: what each tick was computed from, and what came of it, compactly, so that it can be replayed.

`plain` turns the model's values into JSON and back, `observations` and `lines` write only what has changed since the tick
before, `file` keeps the lines in gzip'ed files of bounded size. Written beside the loop and never by it.
"""

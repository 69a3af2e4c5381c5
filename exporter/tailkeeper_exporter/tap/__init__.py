"""The tap: a streaming proxy before a backend, which knows each request from its first byte to its last.

It runs in a process of its own, so that nothing the exporter does (a hostile page, a large scrape) delays a user's tokens, and
sends what it saw as values: ``exchange.Exchange`` per finished request, ``knobs.Knobs`` the other way.
"""

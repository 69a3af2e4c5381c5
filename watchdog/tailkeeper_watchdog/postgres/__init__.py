"""The ledger on a PostgreSQL server, for watchdogs on several machines. What it promises and why: docs/adr/0007.

The way down: `leadership` (which of them leads, and when what was noted is written) → `ledger` (the leader's own image, and what
of it is not in the database yet) → `work` (what is done within one connection) → `line` (that connection, in a thread of its own,
with a deadline) → `server`, `tables`, `words`. The rest of the watchdog knows a ``Ledger`` and a ``Leadership``, and nothing of
this.
"""

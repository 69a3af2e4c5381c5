"""Replay: the loop itself, over history instead of the world. What would have been found, and what would have been done.

`recorded` computes recorded ticks again and compares; `simulated` lets a configuration decide over recorded or queried
evidence, with gateways in memory; `history` asks a Prometheus for that evidence; `report` and `words` say what came of it.
Nothing here writes to a gateway, and nothing of the live watchdog knows of it.
"""

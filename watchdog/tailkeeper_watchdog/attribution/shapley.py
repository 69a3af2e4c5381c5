"""The Shapley value of every player from the worth of every coalition: exact, by its definition. Pure."""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_PLAYERS = 10
"""1,024 coalitions. Twice as many players would be a million, and no longer done within a tick."""


@lru_cache(maxsize=MAX_PLAYERS + 1)
def _weights(players: int) -> Floats:
    """Row i says with which weight each coalition's worth counts for player i."""
    masks = np.arange(1 << players)
    sizes = np.array([bin(mask).count("1") for mask in masks])
    joins = np.array([1.0 / (players * comb(players - 1, size)) for size in range(players)])
    table = np.zeros((players, masks.size))
    for player in range(players):
        inside = (masks >> player) & 1 == 1
        table[player, inside] = joins[sizes[inside] - 1]
        table[player, ~inside] = -joins[sizes[~inside]]
    return table


def shapley(worth: Floats) -> Floats:
    """What each player adds on average over all orders of joining. ``worth[mask]`` is that of the players in ``mask``.

    The values add up to ``worth[-1] - worth[0]``. Raises ValueError for a table that is none, or of too many players.
    """
    players = int(worth.size).bit_length() - 1
    if not 1 <= players <= MAX_PLAYERS or worth.size != 1 << players:
        raise ValueError(f"worth: {worth.size} values are refused; 2 to {1 << MAX_PLAYERS}, a power of two, are allowed")
    return _weights(players) @ worth

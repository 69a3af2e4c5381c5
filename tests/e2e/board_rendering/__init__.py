"""Boards in a browser. A package of its own, so that its demo and its browser end with its last test."""

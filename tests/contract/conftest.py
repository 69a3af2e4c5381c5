"""The fixture that starts real programs."""

from __future__ import annotations

from tests.e2e.real_programs import programs

__all__ = ["programs"]

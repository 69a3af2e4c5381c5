"""What holds for all tests: a timing never decides one, and CI tries the same examples on every run."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("people", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "people")

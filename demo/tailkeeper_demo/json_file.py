"""Files other programs poll: replaced in one step, so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as JSON. Raises `OSError` when the folder cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)

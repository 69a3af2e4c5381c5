"""``--auth KEY=FILE`` of the commands that ask a Prometheus: what `auth` is in the configuration. Files, never the secrets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from tailkeeper.credential_checks import Place, problems
from tailkeeper_exporter.settings import Auth

KEYS = tuple(Auth.model_fields)
HELP = f"Credentials for --prometheus, in a file; may be repeated. KEY is one of {', '.join(KEYS)}."


def auth_in(given: Sequence[str], url: str | None) -> Auth:
    """The credentials for ``url``, each file looked into. Raises ValueError with a sentence that names the option."""
    if given and url is None:
        raise ValueError("--auth belongs to --prometheus URL, and goes nowhere without it")
    files: dict[str, Path] = {}
    for text in given:
        key, has_file, file = text.partition("=")
        if key not in KEYS or not has_file or not file:
            raise ValueError(f"--auth: give KEY=FILE, with KEY one of {', '.join(KEYS)}")  # what was given may be a secret
        if key in files:
            raise ValueError(f"--auth: {key} is there twice")
        files[key] = Path(file).absolute()
    try:
        auth = Auth.model_validate(files)
    except ValidationError as error:
        raise ValueError(f"--auth: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}") from None
    for problem in problems([Place("--prometheus", auth, ())]):
        raise ValueError(problem.replace("--prometheus.auth.", "--auth "))
    return auth


def files_of(auth: Auth) -> dict[str, str]:
    """As it stands in a configuration: the keys that are set, with their files."""
    return {key: str(file) for key, file in auth if file is not None}

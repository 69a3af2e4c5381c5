"""``deploy/alertmanager/receivers.yaml`` below a folder: read for ``tailkeeper generate``, and written where there is none."""

from __future__ import annotations

from pathlib import Path

from tailkeeper_alerts.alertmanager import RECEIVERS_PATH, default_receivers
from tailkeeper_alerts.notifications.receivers import ReceiverFileError, Receivers, parse


def receivers_in(base: Path) -> Receivers:
    """The receivers of the file below ``base``; none where there is no file. Raises ReceiverFileError naming file and key."""
    file = base / RECEIVERS_PATH
    try:
        return parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Receivers()
    except (OSError, UnicodeDecodeError) as error:
        raise ReceiverFileError(f"{file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from None
    except ReceiverFileError as error:
        raise ReceiverFileError("\n".join(f"{file}: {line}" for line in str(error).splitlines())) from None


def keep_or_write_default(base: Path) -> None:
    """What people have edited is never overwritten."""
    file = base / RECEIVERS_PATH
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(default_receivers(), encoding="utf-8")

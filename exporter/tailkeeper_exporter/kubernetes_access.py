"""How to get into a Kubernetes API: the address and the credentials of a kubeconfig, or of the cluster that this runs in.

Reads files and asks no cluster. Everything is read anew at each call, for a service account's token and a kubeconfig are
rotated. The extra ``kubernetes`` is imported here at the first call and not before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

INSTALL = "the Kubernetes client is not installed: pip install 'tailkeeper[kubernetes]'"


class AccessError(Exception):
    """There is no way in, with a sentence. Never repeats anything of a kubeconfig."""


async def configuration(kubeconfig: Path | None, in_cluster: bool) -> Any:
    """What a client of ``kubernetes_asyncio`` is made from. Where neither is given: the cluster, else the user's own file.

    Raises AccessError.
    """
    try:
        from kubernetes_asyncio import client, config
    except ImportError as error:
        raise AccessError(INSTALL) from error
    found = client.Configuration()
    try:
        if in_cluster or (kubeconfig is None and _is_in_cluster()):
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            name = _users_own() if kubeconfig is None else str(kubeconfig)
            await config.load_kube_config(config_file=name, client_configuration=found, persist_config=False)
    except config.ConfigException as error:
        raise AccessError(f"no usable credentials: {short(error)}") from error
    except (yaml.YAMLError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        # The loader checks little. Of what is in the file nothing is repeated.
        raise AccessError(f"no usable credentials: {type(error).__name__} in the kubeconfig") from error
    return found


def short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _is_in_cluster() -> bool:
    from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME

    return bool(os.environ.get(SERVICE_HOST_ENV_NAME))


def _users_own() -> str:
    """Where kubectl looks. Raises AccessError where nothing is: the loader would log that at each call."""
    from kubernetes_asyncio.config import kube_config

    places: str = kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    if not any(os.path.exists(os.path.expanduser(place)) for place in places.split(os.pathsep)):
        raise AccessError(f"this runs in no cluster, and there is no {places}; set kubeconfig or in_cluster")
    return places

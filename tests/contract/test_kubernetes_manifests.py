"""The manifests in deploy/kubernetes: valid, hardened, of one piece, and of the same facts as the compose stack.

Rendered by the real kubectl, checked by published schemas; no cluster has seen them here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper import __version__
from tailkeeper.config import parse
from tailkeeper.sharding import sharded
from tailkeeper_exporter.catalog import CATALOG
from tailkeeper_exporter.discovery.file_sd import FileLister
from tailkeeper_exporter.settings import FileDiscovery, KubernetesDiscovery
from tailkeeper_watchdog.metrics import WATCHDOG_CATALOG
from tailkeeper_watchdog.shard import shard_named
from tests.contract.manifests import (
    COMPONENTS,
    KUBERNETES,
    OVERLAYS,
    ROOT,
    Key,
    Thing,
    check,
    configurations,
    loaded,
    our_containers,
    overlay,
    overlay_with,
    pod_specs,
)

pytestmark = pytest.mark.real
APPLY_LIMIT_BYTES = 262_144
"""Of all annotations of an object: ``kubectl apply`` keeps the whole object in one."""
CONFIG_MAP_LIMIT_BYTES = 1_048_576
TARGET_LABELS = {"job", "instance", "namespace", "pod", "container", "service", "endpoint", "node"}
"""What the Prometheus operator puts on every series of a target; a label of ours of that name would be renamed."""
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
ADDED = ("gpu-autoscaling", "gpu-autoscaling-fragmentation", "kubernetes-evict", "prometheus-operator", "watchdog-ha")
SHARDED = "watchdog-shards"
"""Instead of ``watchdog-ha``."""


@pytest.fixture(params=OVERLAYS)
def things(request: pytest.FixtureRequest) -> dict[Key, Thing]:
    return overlay(request.param)


def all_there_is() -> dict[Key, Thing]:
    return overlay_with("exporter-sidecar", *ADDED)


def test_every_component_is_in_an_overlay_or_tried_with_one() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
    used = set(re.findall(r"components/([\w-]+)", text)) | {*ADDED, SHARDED}
    assert set(COMPONENTS) == used


def test_every_object_is_valid_by_the_published_schemas(things: dict[Key, Thing]) -> None:
    for thing in things.values():
        check(thing)


def test_everything_together_is_valid_too() -> None:
    for thing in all_there_is().values():
        check(thing)


def test_a_misspelt_field_is_refused_by_the_schemas() -> None:
    deployment = next(thing for key, thing in overlay("exporter-discovery").items() if key[0] == "Deployment")
    with pytest.raises(Exception, match="Additional properties"):
        check({**deployment, "spec": {**deployment["spec"], "replica": 1}})
    monitor = next(thing for key, thing in all_there_is().items() if key[0] == "ServiceMonitor")
    with pytest.raises(Exception, match="Additional properties"):
        check({**monitor, "spec": {**monitor["spec"], "endpoint": []}})


# --- hardened --------------------------------------------------------------------------------------------------------


def test_nothing_of_ours_is_root_or_can_become_it_or_write_its_image(things: dict[Key, Thing]) -> None:
    found = list(our_containers(things))
    assert found
    for key, spec, container in found:
        own = {**spec["securityContext"], **container["securityContext"]}
        wanted = {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        assert own | wanted == own, key
        assert not own.keys() & {"privileged"}
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert all("hostPath" not in volume for volume in spec["volumes"])
        assert all("hostPort" not in port for port in container.get("ports", ()))


def test_memory_is_bounded_as_in_compose_and_the_cpu_is_not(things: dict[Key, Thing]) -> None:
    for _, _, container in our_containers(things):
        part = "watchdog" if container["name"] == "watchdog" else "exporter"
        assert container["resources"]["limits"] == {"memory": COMPOSE[part]["mem_limit"].replace("m", "Mi")}
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_only_a_pod_that_asks_the_api_has_a_token_for_it(things: dict[Key, Thing]) -> None:
    bound = {
        subject["name"] for (kind, *_), thing in things.items() if kind.endswith("RoleBinding") for subject in thing["subjects"]
    }
    accounts = {name: thing for (kind, _, name), thing in things.items() if kind == "ServiceAccount"}
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())
    for key, spec in pod_specs(things):
        account = spec.get("serviceAccountName", "none")
        assert account in accounts or account == "none", key
        assert spec["automountServiceAccountToken"] is (account in bound), key


def test_the_namespace_takes_nothing_that_is_less_than_restricted(things: dict[Key, Thing]) -> None:
    labels = things["Namespace", "", "tailkeeper"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_no_secret_is_committed(things: dict[Key, Thing]) -> None:
    assert not [key for key in things if key[0] == "Secret"]


def test_only_our_own_pods_and_monitoring_come_in_and_only_at_our_ports(things: dict[Key, Thing]) -> None:
    (policy,) = [thing["spec"] for key, thing in things.items() if key[0] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    ours = {"app.kubernetes.io/name": "tailkeeper"}
    assert policy["podSelector"] == {"matchLabels": ours}
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert rule["from"] == [{"podSelector": {"matchLabels": ours}}, {"namespaceSelector": monitoring}]
    assert {port["port"] for port in rule["ports"]} == {_exposed("watchdog"), _exposed("exporter")}


# --- health ----------------------------------------------------------------------------------------------------------


def test_a_sick_fleet_restarts_nothing(things: dict[Key, Thing]) -> None:
    """/healthz is 503 when an engine is ill, /readyz when the exporter cannot be had: neither is mended by a restart."""
    for _, _, container in our_containers(things, first=False):
        for probe in ("livenessProbe", "startupProbe"):
            assert container[probe]["httpGet"]["path"] == "/livez"


def test_a_sidecar_has_no_say_in_whether_its_engine_serves() -> None:
    (sidecar,) = [c for _, _, c in our_containers(overlay("exporter-sidecar"), first=False) if c["name"] == "tailkeeper-exporter"]
    assert "readinessProbe" not in sidecar


def test_one_watchdog_is_ready_when_it_leads_and_of_two_each_when_it_lives() -> None:
    for found, path, replicas in ((overlay("exporter-sidecar"), "/readyz", 1), (all_there_is(), "/livez", 2)):
        deployment = found["Deployment", "tailkeeper", "tailkeeper-watchdog"]["spec"]
        (container,) = deployment["template"]["spec"]["containers"]
        assert (container["readinessProbe"]["httpGet"]["path"], deployment["replicas"]) == (path, replicas)
        # Two versions never share a ledger, and a successor that stands by never keeps an update from going on.
        assert deployment["strategy"] == {"type": "Recreate"}
        budgets = [key for key in found if key[0] == "PodDisruptionBudget" and key[1] == "tailkeeper"]
        assert len(budgets) == replicas - 1, "a budget for a single pod keeps its node from being drained"
        claim = found["PersistentVolumeClaim", "tailkeeper", "tailkeeper-state"]["spec"]
        assert claim["accessModes"] == (["ReadWriteOnce"] if replicas == 1 else ["ReadWriteMany"])


# --- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OVERLAYS)
def test_shards_are_valid_with_every_exporter(name: str) -> None:
    for thing in overlay_with(name, SHARDED).values():
        check(thing)


def test_each_shard_is_told_its_number_and_has_a_ledger_and_a_lease_of_its_own(tmp_path: Path) -> None:
    found = overlay_with("exporter-discovery", SHARDED)
    assert not {
        ("Deployment", "tailkeeper", "tailkeeper-watchdog"),
        ("PersistentVolumeClaim", "tailkeeper", "tailkeeper-state"),
    } & {*found}, "two watchdogs for the same pools"
    shards = found["StatefulSet", "tailkeeper", "tailkeeper-watchdog"]["spec"]
    (container,) = shards["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert container["args"][:3] == ["watchdog", "-c", "/etc/tailkeeper/tailkeeper.yaml"]

    config = loaded(dict(configurations(found))["tailkeeper.yaml"], tmp_path)
    parts = []
    for index in range(shards["replicas"]):  # as the kubelet fills it in
        option, value = container["args"][3].replace("--shard", "shard"), container["args"][4].replace("$(SHARD)", str(index))
        assert option == "shard"
        parts.append(sharded(config, shard_named(value)))
    assert {part.shard.of for part in parts} == {shards["replicas"]}, "another number than there are pods"
    assert len({part.config.watchdog.state for part in parts}) == len(parts)

    leases = {part.config.watchdog.leader.name for part in parts if part.config.watchdog.leader} | {parts[0].whole_lease}
    (named,) = [
        rule["resourceNames"] for rule in found["Role", "tailkeeper", "tailkeeper-leader"]["rules"] if "resourceNames" in rule
    ]
    assert set(named) == leases

    (claim,) = shards["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in shards["template"]["spec"]["volumes"]} | {claim["metadata"]["name"]}
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}["state"] == "/var/lib/tailkeeper"
    assert volumes == {mount["name"] for mount in container["volumeMounts"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_shards_are_scraped_once_each_and_none_waits_for_another() -> None:
    found = overlay_with("prometheus-operator", SHARDED)
    shards = found["StatefulSet", "tailkeeper", "tailkeeper-watchdog"]["spec"]
    named = found["Service", "tailkeeper", shards["serviceName"]]
    assert (named["spec"]["clusterIP"], named["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert named["spec"]["selector"].items() <= shards["template"]["metadata"]["labels"].items()
    monitors = [thing["spec"] for key, thing in found.items() if key[0] == "ServiceMonitor"]
    scraped = sorted(service["metadata"]["name"] for spec in monitors for service in _monitored(found, spec))
    assert scraped == ["tailkeeper-exporter", "tailkeeper-watchdog"]
    # One of another number stands by until the last of the old number is gone: not ready, it would keep that one in its place.
    assert shards["podManagementPolicy"] == "Parallel"
    assert shards["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/livez"


# --- of one piece ----------------------------------------------------------------------------------------------------


def _references(spec: Thing, namespace: str) -> Iterator[Key]:
    for volume in spec["volumes"]:
        if "configMap" in volume:
            yield "ConfigMap", namespace, volume["configMap"]["name"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", namespace, volume["persistentVolumeClaim"]["claimName"]


def test_what_a_pod_mounts_is_there(things: dict[Key, Thing]) -> None:
    for (_, namespace, _), spec in pod_specs(things):
        assert set(_references(spec, namespace)) <= set(things)
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_token_is_one_secret_made_by_hand(things: dict[Key, Thing]) -> None:
    secrets = [volume["secret"] for _, spec in pod_specs(things) for volume in spec["volumes"] if "secret" in volume]
    assert secrets == [{"secretName": "tailkeeper-token", "defaultMode": 0o440}]
    assert "create secret generic tailkeeper-token" in (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")


def test_every_service_leads_to_pods_with_that_port(things: dict[Key, Thing]) -> None:
    for (kind, namespace, name), service in things.items():
        if kind != "Service" or name == "vllm-of-this-node":  # to engines that are not of ours
            continue
        pods = list(_selected(things, namespace, service["spec"]["selector"]))
        assert pods, name
        for port in service["spec"]["ports"]:
            for spec in pods:
                named = [p for c in spec["containers"] for p in c["ports"] if p["name"] == port["targetPort"]]
                assert [p["containerPort"] for p in named] == [port["port"]], name


def _selected(things: dict[Key, Thing], namespace: str, selector: dict[str, str]) -> Iterator[Thing]:
    for (kind, place, _), thing in things.items():
        if kind in ("Deployment", "DaemonSet", "StatefulSet") and place == namespace:
            template = thing["spec"]["template"]
            if selector.items() <= template["metadata"]["labels"].items():
                yield template["spec"]


@pytest.mark.parametrize("name", ["exporter-daemonset", "prometheus-operator", "everything"])
def test_what_prometheus_scrapes_has_the_job_that_the_rules_ask_for(name: str) -> None:
    found = all_there_is() if name == "everything" else overlay(name)
    jobs = {job["job_name"] for job in _yaml("deploy/prometheus/prometheus.yml")["scrape_configs"]}
    monitors = [thing for key, thing in found.items() if key[0] == "ServiceMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        spec = monitor["spec"]
        (service,) = _monitored(found, spec)
        assert service["metadata"]["name"] in jobs
        assert {port["name"] for port in service["spec"]["ports"]} == {endpoint["port"] for endpoint in spec["endpoints"]}


def _monitored(found: dict[Key, Thing], spec: Thing) -> list[Thing]:
    wanted = spec["selector"]["matchLabels"].items()
    return [
        thing
        for (kind, namespace, _), thing in found.items()
        if kind == "Service" and namespace in spec["namespaceSelector"]["matchNames"]
        if wanted <= thing["metadata"].get("labels", {}).items()
    ]


def test_no_label_of_ours_is_one_that_the_operator_sets() -> None:
    assert not {label.name for metric in (*CATALOG, *WATCHDOG_CATALOG) for label in metric.labels} & TARGET_LABELS


# --- the same facts as elsewhere -------------------------------------------------------------------------------------


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def _exposed(target: str) -> int:
    port = re.search(r"EXPOSE (\d+)", DOCKERFILE.partition(f"FROM base AS {target}\n")[2])
    assert port is not None
    return int(port[1])


def test_images_ports_and_user_are_those_of_compose_and_of_the_dockerfile(things: dict[Key, Thing]) -> None:
    images = {COMPOSE[part]["image"] for part in ("watchdog", "exporter")}
    assert {image.partition(":")[2] for image in images} == {__version__}
    for _, spec, container in our_containers(things):
        assert container["image"] in images
        user = {**spec["securityContext"], **container["securityContext"]}["runAsUser"]
        assert f"USER {user}:" in DOCKERFILE
        part = "watchdog" if container["name"] == "watchdog" else "exporter"
        assert [port["containerPort"] for port in container.get("ports", [])] in ([], [_exposed(part)])


def test_what_finds_pods_runs_in_the_image_that_can_ask_for_them(things: dict[Key, Thing]) -> None:
    assert "deploy/install.sh watchdog,demo,kubernetes" in DOCKERFILE
    assert "deploy/install.sh gpu\n" in DOCKERFILE
    found = dict(configurations(things))
    asks = any(entry["kind"] == "kubernetes" for entry in found["exporter.yaml"]["discovery"])
    exporters = [c for _, _, c in our_containers(things, first=False) if c["args"][0] == "exporter"]
    assert [c["image"].startswith("tailkeeper/watchdog:") for c in exporters] == [asks]


def test_the_configurations_are_valid_and_say_what_compose_says(things: dict[Key, Thing]) -> None:
    found = dict(configurations(things))
    assert set(found) == {"tailkeeper.yaml", "exporter.yaml"}
    watchdog, exporter = parse(found["tailkeeper.yaml"]), parse(found["exporter.yaml"])
    compose = parse(_yaml("deploy/config/tailkeeper.yaml"))
    for key in ("listen", "state", "token_file"):
        assert getattr(watchdog.watchdog, key) == getattr(compose.watchdog, key)
    assert exporter.exporter.listen == compose.exporter.listen
    assert watchdog.slo == compose.slo
    # The exporter has no watchdog's token, and does not need one.
    assert exporter.watchdog.token_file is None
    assert all(policy.mode == "observe" for policy in dict(watchdog.policies).values())


def test_every_configuration_loads_as_a_pod_loads_it(things: dict[Key, Thing], tmp_path: Path) -> None:
    for _, document in configurations(things):
        loaded(document, tmp_path)


def test_the_watchdog_mounts_what_its_configuration_names(things: dict[Key, Thing]) -> None:
    config = parse(dict(configurations(things))["tailkeeper.yaml"])
    (container,) = things["Deployment", "tailkeeper", "tailkeeper-watchdog"]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts[str(config.watchdog.state.parent)] == "state"
    assert config.watchdog.token_file is not None
    assert mounts[str(config.watchdog.token_file.parent)] == "token"
    assert mounts[str(Path(container["args"][-1]).parent)] == "config"
    lease = config.watchdog.leader
    assert lease is not None
    assert (lease.namespace, lease.in_cluster) == ("tailkeeper", True)
    named = [
        rule["resourceNames"] for rule in things["Role", "tailkeeper", "tailkeeper-leader"]["rules"] if "resourceNames" in rule
    ]
    assert named == [[lease.name]]


def test_the_watchdog_reads_exporters_that_are_there(things: dict[Key, Thing]) -> None:
    source = parse(dict(configurations(things))["tailkeeper.yaml"]).watchdog.source
    if source.kind == "prometheus":
        monitors = [thing["spec"] for key, thing in things.items() if key[0] == "ServiceMonitor"]
        assert {e["interval"] for spec in monitors for e in spec["endpoints"]} == {f"{source.interval_s:g}s"}
        return
    reachable = {f"http://{name}:9400" for kind, _, name in things if kind == "Service"}
    for (kind, namespace, name), thing in things.items():
        if kind == "StatefulSet":
            count, service = thing["spec"]["replicas"], thing["spec"]["serviceName"]
            reachable |= {f"http://{name}-{index}.{service}.{namespace}:9400" for index in range(count)}
    assert set(source.urls) <= reachable


def test_both_parts_find_the_same_engines_where_both_look() -> None:
    found = dict(configurations(overlay("exporter-discovery")))
    assert found["exporter.yaml"]["discovery"] == found["tailkeeper.yaml"]["discovery"]


def test_prometheus_scrapes_as_often_as_in_compose() -> None:
    own = _yaml("deploy/prometheus/prometheus.yml")["global"]
    for key, thing in overlay("prometheus-operator").items():
        if key[0] == "ServiceMonitor":
            (endpoint,) = thing["spec"]["endpoints"]
            assert (endpoint["interval"], endpoint["scrapeTimeout"]) == (own["scrape_interval"], own["scrape_timeout"])


# --- the name of an engine -------------------------------------------------------------------------------------------


def _run(init: Thing, environment: dict[str, str], here: Path) -> str:
    """What it runs, here and not in its own folder, which is returned."""
    assert {entry["name"] for entry in init["env"]} == set(environment)
    assert init["command"] == ["python", "-c"]
    (script,), (mount,) = init["args"], init["volumeMounts"]
    folder = str(mount["mountPath"])
    argv = [sys.executable, "-c", script.replace(folder, str(here))]
    subprocess.run(argv, env={**os.environ, **environment}, check=True, timeout=30)
    return folder


def _init(name: str, container: str) -> Thing:
    (found,) = [c for _, _, c in our_containers(overlay(name)) if c["name"] == container]
    return found


@pytest.mark.parametrize(
    ("name", "container", "environment", "backend", "url"),
    [
        ("exporter-sidecar", "tailkeeper-target", {"NAMESPACE": "llm", "POD": "vllm-0"}, "llm/vllm-0", "http://127.0.0.1:8000"),
        ("exporter-daemonset", "target", {"NODE": "gpu-node-1"}, "gpu-node-1", "http://vllm-of-this-node.llm:8000"),
    ],
)
async def test_an_exporter_is_told_its_engine_by_what_runs_before_it(
    name: str, container: str, environment: dict[str, str], backend: str, url: str, tmp_path: Path
) -> None:
    folder = _run(_init(name, container), environment, tmp_path)
    config = parse(dict(configurations(overlay(name)))["exporter.yaml"])
    (entry,) = config.discovery
    assert isinstance(entry, FileDiscovery)
    files = tuple(file.replace(folder, str(tmp_path)) for file in entry.files)
    listing = await FileLister(entry.model_copy(update={"files": files})).list(5.0)
    assert [(found.name, found.url) for found in listing.found] == [(backend, url)]


def test_the_watchdog_knows_a_sidecars_engine_by_the_same_name() -> None:
    config = parse(dict(configurations(overlay("exporter-sidecar")))["tailkeeper.yaml"])
    (entry,) = config.discovery
    assert isinstance(entry, KubernetesDiscovery)  # which names a pod NAMESPACE/POD
    engine = overlay("exporter-sidecar")["StatefulSet", "llm", "vllm"]["spec"]["template"]["metadata"]["labels"]
    name, _, value = entry.selector.partition("=")
    assert (entry.namespace, engine[name]) == ("llm", value)


def test_the_watchdog_knows_a_nodes_engine_by_the_address_that_the_exporter_has() -> None:
    config = parse(dict(configurations(overlay("exporter-daemonset")))["tailkeeper.yaml"])
    service = overlay("exporter-daemonset")["Service", "llm", "vllm-of-this-node"]["spec"]
    assert {backend.url for backend in config.backends} == {"http://vllm-of-this-node.llm:8000"}
    assert (service["internalTrafficPolicy"], service["publishNotReadyAddresses"]) == ("Local", True)


# --- rules and boards ------------------------------------------------------------------------------------------------


def test_rules_are_the_generated_ones_word_for_word() -> None:
    rules = {key[2]: thing["spec"] for key, thing in overlay("prometheus-operator").items() if key[0] == "PrometheusRule"}
    assert rules == {
        "tailkeeper": _yaml("alerts/generated/tailkeeper.rules.yml"),
        "tailkeeper-vllm-only": _yaml("alerts/generated/vllm-only.rules.yml"),
    }


def test_every_board_is_a_config_map_that_grafanas_sidecar_takes_and_kubectl_apply_can_hold() -> None:
    found = overlay("prometheus-operator")
    boards = [thing for thing in found.values() if thing["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "dashboards/generated").glob("*.json")}
    assert {name: text for board in boards for name, text in board["data"].items()} == files
    for board in boards:
        assert board["metadata"]["namespace"] == "tailkeeper"
        assert len(json.dumps(board).encode()) < APPLY_LIMIT_BYTES < CONFIG_MAP_LIMIT_BYTES


# --- scaling ---------------------------------------------------------------------------------------------------------

THRESHOLDS = {"tailkeeper_gpu_use": "400m", "tailkeeper_gpu_memory_fragmentation": "600m"}


def test_engines_are_scaled_at_the_products_limits_by_metrics_of_the_catalogue() -> None:
    import promql_parser

    (scaler,) = [thing for key, thing in all_there_is().items() if key[0] == "HorizontalPodAutoscaler"]
    asked = {m["external"]["metric"]["name"]: m["external"]["target"]["value"] for m in scaler["spec"]["metrics"]}
    assert asked == THRESHOLDS
    rules = _yaml("deploy/kubernetes/components/gpu-autoscaling/prometheus-adapter-values.yaml")["rules"]["external"]
    assert {rule["name"]["as"] for rule in rules} == set(asked)
    known = {metric.name: {label.name for label in metric.labels} for metric in CATALOG}
    for rule in rules:
        series = re.match(r"\w+", rule["seriesQuery"])
        assert series is not None
        assert known[series[0]] >= {"backend", "gpu"}
        query = rule["metricsQuery"].replace("<<.Series>>", series[0]).replace("<<.LabelMatchers>>", 'backend=~"llm/.*"')
        promql_parser.parse(query)
        assert rule["resources"] == {"namespaced": False}


def test_a_metric_that_no_driver_tells_is_not_asked_for_by_default() -> None:
    """An autoscaler that misses one of its metrics never scales down."""
    (scaler,) = [
        thing for key, thing in overlay_with("exporter-sidecar", "gpu-autoscaling").items() if key[0] == "HorizontalPodAutoscaler"
    ]
    assert [m["external"]["metric"]["name"] for m in scaler["spec"]["metrics"]] == ["tailkeeper_gpu_use"]
    assert scaler["spec"]["scaleTargetRef"]["name"] in {key[2] for key in overlay("exporter-sidecar") if key[0] == "StatefulSet"}

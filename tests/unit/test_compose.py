"""The compose stack as text: hardened containers, loopback only, one interval, names that fit each other. Runs nothing."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.make_token import make, without_gpus
from tailkeeper.config import parse
from tailkeeper_alerts.notifications.integrations import WatchdogWebhook
from tailkeeper_alerts.notifications.receivers import SECRETS_DIR
from tailkeeper_exporter.gpu import FileSource
from tailkeeper_watchdog.model import Mode
from tests.e2e import compose_own
from tests.e2e.compose_own import written
from tests.e2e.real_programs import binary

ROOT = Path(__file__).parents[2]
OURS = ("init", "exporter", "exporter-gpu", "watchdog", "fleet", "haproxy", "load", "otel-collector", "tempo", "loki")
"""Services that run as our user; the other images bring users of their own, none of them root."""
FROM_OUTSIDE = {"otel-collector", "tempo"}
"""Their images hold one program that cannot ask itself whether it is well: Prometheus says whether they are up."""
NO_HEALTH = {"init", *FROM_OUTSIDE}
DEMO = {"fleet", "haproxy", "load"}


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


COMPOSE = _yaml("docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
ENVIRONMENT = dict(
    line.split("=", 1) for line in (ROOT / ".env").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_read_only_without_capabilities_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert "privileged" not in service
    assert "cap_add" not in service


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_publishes_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_only_what_people_open_is_published() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert {name: ports[0].rpartition(":")[2] for name, ports in published.items()} == {
        "grafana": "3000",
        "watchdog": "8088",
        "prometheus": "9090",
        "alertmanager": "9093",
    }


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - NO_HEALTH))
def test_a_service_says_whether_it_is_healthy(name: str) -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    if "healthcheck" not in SERVICES[name]:
        target = SERVICES[name]["build"]["target"]
        assert "HEALTHCHECK" in dockerfile.partition(f" AS {target}\n")[2]
    assert "disable" not in SERVICES[name].get("healthcheck", {})


def test_what_cannot_say_whether_it_is_healthy_is_scraped_and_nobody_waits_for_its_health() -> None:
    scraped = {job["job_name"] for job in _yaml("deploy/prometheus/prometheus.yml")["scrape_configs"]}
    assert scraped >= FROM_OUTSIDE
    for service in SERVICES.values():
        needed = service.get("depends_on", {})
        waited_for = {other for other, how in needed.items() if how["condition"] == "service_healthy"}
        assert not waited_for & NO_HEALTH


def test_nothing_of_ours_runs_as_root() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    assert "USER 10001:10001" in dockerfile
    users = {name: SERVICES[name].get("user", "10001:10001") for name in OURS}
    assert all(user.startswith("10001:") for user in users.values())


def test_every_image_is_pinned_to_a_version() -> None:
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^FROM (\S+:\S+)", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    for image in images:
        assert re.fullmatch(r"[a-z/-]+:v?\d[\w.-]*", image), image


def test_the_stores_images_are_of_the_line_that_their_configuration_is_written_for() -> None:
    for name, path in (("tempo", "deploy/tempo/tempo.yaml"), ("loki", "deploy/loki/loki.yaml")):
        line = re.match(rf"# {name.title()} (\d+\.\d+)", (ROOT / path).read_text(encoding="utf-8"))
        assert line is not None
        assert SERVICES[name]["image"].startswith(f"grafana/{name}:{line[1]}.")
    collector = re.search(r"contrib, (\d+\.\d+) and later", (ROOT / "deploy/otel/collector.yaml").read_text(encoding="utf-8"))
    assert collector is not None
    assert _numbers(SERVICES["otel-collector"]["image"].partition(":")[2]) >= _numbers(collector[1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_a_file_that_a_command_names_is_in_what_is_mounted() -> None:
    for name in ("otel-collector", "tempo", "loki"):
        service = SERVICES[name]
        (file,) = [Path(word.partition("=")[2]) for word in service["command"]]
        mounts = dict(volume.split(":")[:2][::-1] for volume in service["volumes"])
        assert (ROOT / mounts[str(file.parent)] / file.name).is_file()


def test_a_store_writes_into_a_volume_that_is_its_users_from_the_start() -> None:
    """`init` mounts it first, over a folder of that owner in our image; nobody who comes later is root and could change it."""
    made = re.findall(
        r"install -d -o 10001 -g 10001 -m 0750 (.+?) \\\\?$", (ROOT / "deploy/Dockerfile").read_text("utf-8"), flags=re.M
    )
    assert len(made) == 1
    for name, folder in (("tempo", "/var/tempo"), ("loki", "/loki")):
        assert folder in made[0].split()
        assert f"{name}:{folder}" in SERVICES["init"]["volumes"]
        assert f"{name}:{folder}" in SERVICES[name]["volumes"]
        assert SERVICES[name]["depends_on"]["init"] == {"condition": "service_completed_successfully"}


def test_volumes_are_named_or_read_only_files_of_this_checkout() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert mode == ["ro"], volume
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], volume
            assert target.startswith("/")


def test_the_demo_is_a_profile_and_nothing_else_needs_it() -> None:
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["demo"]} == DEMO
    assert ENVIRONMENT["COMPOSE_PROFILES"] == "demo"
    for name in SERVICES.keys() - DEMO:
        needed = SERVICES[name].get("depends_on", {})
        assert all(needed[other].get("required") is False for other in needed.keys() & DEMO), name


def test_every_variable_of_the_compose_file_has_a_value() -> None:
    used = set(re.findall(r"\$\{(\w+)\}", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    assert used - {"COMPOSE_PROJECT_NAME"} <= set(ENVIRONMENT)  # that one is docker compose's own
    assert (ROOT / ENVIRONMENT["TAILKEEPER_CONFIG_DIR"] / "tailkeeper.yaml").is_file()


def test_every_variable_is_explained() -> None:
    lines = (ROOT / ".env").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            before = next(above for above in reversed(lines[:number]) if not re.match(r"\w+_PORT=", above))
            assert before.startswith("#"), line


def test_the_gpu_profiles_exporter_is_the_other_one_with_gpus_and_never_runs_beside_it() -> None:
    plain, gpu = SERVICES["exporter"], SERVICES["exporter-gpu"]
    assert gpu["profiles"] == ["gpu"]
    assert "profiles" not in plain
    assert {key: gpu[key] for key in plain.keys() - {"deploy", "depends_on"}} == {
        key: plain[key] for key in plain.keys() - {"deploy", "depends_on"}
    }
    (devices,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["driver"], devices["count"]) == ("nvidia", "all")
    assert {"gpu", "utility"} == set(devices["capabilities"])
    assert plain["deploy"]["replicas"] == "${TAILKEEPER_EXPORTERS}"
    assert ENVIRONMENT["TAILKEEPER_EXPORTERS"] == "1"
    # Docker gives a name once, and this is what compose calls the other's container.
    assert gpu["container_name"] == "${COMPOSE_PROJECT_NAME}-exporter-1"
    assert gpu["networks"]["default"]["aliases"] == ["exporter"]
    for name, service in SERVICES.items():
        needed = service.get("depends_on", {})
        assert ("exporter" in needed) == ("exporter-gpu" in needed) or name == "exporter-gpu"
        assert all(needed[other]["required"] is False for other in {"exporter", "exporter-gpu"} & needed.keys()), name


def test_what_asks_engines_and_gateways_reaches_those_of_the_machine() -> None:
    for name in ("exporter", "exporter-gpu", "watchdog"):
        assert SERVICES[name]["extra_hosts"] == ["host.docker.internal:host-gateway"]


def test_the_images_hold_the_versions_that_were_tested() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"sh deploy/install.sh (\S+)$", dockerfile, flags=re.M) == ["gpu", "watchdog,demo,kubernetes,postgres"]
    assert "pip install" not in dockerfile
    (install,) = re.findall(r"^pip .* install (.+)$", (ROOT / "deploy/install.sh").read_text(encoding="utf-8"), flags=re.M)
    assert "-c constraints.txt" in install
    copied = (ROOT / "deploy/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {"!constraints.txt", "!deploy/install.sh"} <= set(copied)


def test_the_check_takes_a_free_port_for_every_one_that_is_published() -> None:
    script = (ROOT / "tools/compose-check.sh").read_text(encoding="utf-8")
    ports = {name for name in ENVIRONMENT if name.endswith("_PORT")}
    assert ports == set(re.findall(r"(\w+_PORT)=\$\(free_port\)", script))
    (exported,) = re.findall(r"^export (TAILKEEPER_.+)$", script, flags=re.M)
    assert ports == set(exported.split())


# --- the parts fit each other ----------------------------------------------------------------------------------------


def _configuration() -> Any:
    return parse(_yaml("deploy/config/tailkeeper.yaml"))


def test_the_configuration_for_ones_own_engines_differs_in_the_engines_and_acts_on_nothing() -> None:
    own, demo = parse(_yaml("deploy/own/tailkeeper.yaml")), _configuration()
    assert own.watchdog == demo.watchdog
    assert (own.exporter.listen, own.exporter.otlp) == (demo.exporter.listen, demo.exporter.otlp)
    assert own.exporter.gpu.source == "auto"
    assert {backend.url for backend in own.backends} == {"http://host.docker.internal:8000"}
    assert own.gateways == ()
    assert {getattr(own.policies, name).mode for name in type(own.policies).model_fields} == {Mode.OBSERVE}


def test_what_is_commented_out_for_ones_own_engines_is_a_valid_configuration_too() -> None:
    """A line that begins with `#` and then YAML, at its place: switched on, as its reader would."""
    text = (ROOT / "deploy/own/tailkeeper.yaml").read_text(encoding="utf-8")
    switched = re.sub(r"^( *)# ?(- \{|gateways:|  - \{|api_key_file:|gpus:|gateway:)", r"\1\2", text, flags=re.M)
    config = parse(yaml.safe_load(switched.replace("gateways: []\n", "")))
    assert [backend.name for backend in config.backends] == ["vllm-a", "vllm-b"]
    assert (config.backends[0].gpus, config.backends[0].gateway[0].server) == (("0",), "llm/vllm-a")
    assert config.gateways[0].name == "edge"


def test_the_probe_finds_what_it_edits(tmp_path: Path) -> None:
    written(tmp_path, 4711)
    assert parse(yaml.safe_load((tmp_path / "tailkeeper.yaml").read_text(encoding="utf-8"))).backends[0].url.endswith(":4711")
    assert set(compose_own.DEMO) == DEMO


def test_the_configuration_is_valid_and_names_the_stacks_services() -> None:
    config = _configuration()
    telemetry = [config.exporter.otlp.endpoint, config.watchdog.otlp.endpoint]
    urls = [*config.watchdog.source.urls, config.watchdog.alertmanager.url, *(backend.url for backend in config.backends)]
    assert {re.sub(r"https?://([^:/]+).*", r"\1", url) for url in (*urls, *telemetry)} <= set(SERVICES)
    assert config.watchdog.token_file == Path(WatchdogWebhook().credentials_file)


def test_alertmanager_sees_its_whole_folder_and_git_none_of_its_secrets() -> None:
    mounts = dict(volume.split(":")[:2][::-1] for volume in SERVICES["alertmanager"]["volumes"])
    folder = ROOT / mounts["/etc/alertmanager"]
    assert {"alertmanager.yml", "receivers.yaml", "templates"} <= {file.name for file in folder.iterdir()}
    secrets = folder / Path(SECRETS_DIR).relative_to("/etc/alertmanager")
    assert (secrets / ".gitignore").read_text(encoding="utf-8").splitlines()[1:] == ["*", "!.gitignore"]


def test_notifications_link_to_what_is_published() -> None:
    given = _configuration().watchdog.alertmanager
    assert given.console_url == f"http://127.0.0.1:{ENVIRONMENT['TAILKEEPER_CONSOLE_PORT']}"
    assert given.grafana_url == f"http://127.0.0.1:{ENVIRONMENT['TAILKEEPER_GRAFANA_PORT']}"


def test_the_gateways_servers_are_the_taps_of_the_configured_ones() -> None:
    text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text(encoding="utf-8")
    servers = dict(re.findall(r"^\s+server (\S+) (\S+)", text, flags=re.M))
    config = _configuration()
    assert servers == {ref.server.removeprefix("llm/"): f"exporter:{_port(b)}" for b in config.backends for ref in b.gateway}
    assert config.gateways[0].socket in re.findall(r"stats socket (\S+)", text)


def _port(backend: Any) -> str:
    """Of its tap, which listens for the other containers, too."""
    host, _, port = backend.tap.listen.rpartition(":")
    assert host == "0.0.0.0"
    return str(port)


def test_the_fleets_arguments_give_the_ports_names_and_gpus_of_the_configuration() -> None:
    from tailkeeper_demo.gpu_file import gpu_uuid

    arguments = dict(word.removeprefix("--").split("=", 1) for word in SERVICES["fleet"]["command"])
    config = _configuration()
    for index, backend in enumerate(config.backends):
        assert backend.url == f"http://fleet:{int(arguments['base-port']) + index}"
        assert (backend.name, backend.gpus) == (f"sim-{'abcd'[index]}", (gpu_uuid(index),))
        assert backend.model == arguments["model"]
    assert str(config.exporter.gpu.file) == arguments["gpu-file"]


def test_prometheus_scrapes_as_often_as_grafana_believes() -> None:
    prometheus = _yaml("deploy/prometheus/prometheus.yml")
    source = _sources()["prometheus"]
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    targets = [
        target for job in prometheus["scrape_configs"] for config in job.get("static_configs", []) for target in config["targets"]
    ]
    assert {"exporter:9400", "watchdog:8088"} <= set(targets)
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]


def _sources() -> dict[str, Any]:
    document = _yaml("deploy/grafana/provisioning/datasources/tailkeeper.yml")
    return {source["uid"]: source for source in document["datasources"]}


def test_data_sources_have_the_contracts_uids_and_point_at_each_other_only() -> None:
    sources = _sources()
    assert set(sources) == {"prometheus", "tempo", "loki"}
    named = re.findall(r"datasourceUid: (\S+)", yaml.safe_dump(list(sources.values())))
    assert set(named) <= set(sources)
    destinations = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert isinstance(destinations, list)
    assert all(re.fullmatch(r"[a-zA-Z_]\w*", destination["name"]) for destination in destinations)


def test_no_single_dollar_reaches_grafanas_provisioning() -> None:
    text = (ROOT / "deploy/grafana/provisioning/datasources/tailkeeper.yml").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\$)\$(?!\$)", text)


def test_grafana_opens_on_a_board_that_exists_in_the_provided_folder() -> None:
    grafana = SERVICES["grafana"]
    provider = _yaml("deploy/grafana/provisioning/dashboards/tailkeeper.yml")["providers"][0]
    mounts = dict(volume.split(":")[:2][::-1] for volume in grafana["volumes"])
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    board = json.loads((ROOT / mounts[str(home.parent)] / home.name).read_text(encoding="utf-8"))
    assert board["uid"] == "tailkeeper-fleet"


@pytest.mark.real
@pytest.mark.parametrize(
    "words",
    [
        ("promtool", "check", "config", "--syntax-only", "deploy/prometheus/prometheus.yml"),
        ("haproxy", "-c", "-f", "deploy/haproxy/haproxy.cfg"),
    ],
    ids=lambda words: words[0],
)
def test_the_program_itself_accepts_its_configuration(words: tuple[str, ...]) -> None:
    done = subprocess.run([binary(words[0]), *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the token -------------------------------------------------------------------------------------------------------


def test_a_token_is_made_once_is_private_and_differs_between_installations(tmp_path: Path) -> None:
    first, second = tmp_path / "one" / "token", tmp_path / "two" / "token"
    for path in (first, second):
        path.parent.mkdir()
        assert make(path)
    token = first.read_text(encoding="utf-8")
    assert len(token.strip()) >= 43
    assert token != second.read_text(encoding="utf-8")
    assert stat.S_IMODE(first.stat().st_mode) == 0o440
    assert not make(first)
    assert first.read_text(encoding="utf-8") == token


def test_a_draft_left_by_a_killed_start_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "token.new").write_text("half", encoding="utf-8")
    assert make(tmp_path / "token")
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_gpu_file_without_gpus_is_made_once_and_an_exporter_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    without_gpus(file)
    assert FileSource(file).devices() == ()
    file.write_text("kept", encoding="utf-8")
    without_gpus(file)
    assert file.read_text(encoding="utf-8") == "kept"


def test_the_token_is_never_printed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    script = ROOT / "deploy/make_token.py"
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=True, env={**os.environ})
    assert path.read_text(encoding="utf-8").strip() not in done.stdout + done.stderr


def test_no_token_or_password_is_committed() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", ".env")]
    texts += [
        path.read_text(encoding="utf-8") for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    for text in texts:
        assert not re.search(r"(?i)(password|secret|token|bearer)\s*[:=]\s*[\"']?[A-Za-z0-9+/_-]{16,}", text)

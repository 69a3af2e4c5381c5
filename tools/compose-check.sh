#!/usr/bin/env bash
# Runs the compose file for real: build, up, probe, down -v. About 4 minutes with the images there.
#   tools/compose-check.sh
# Where ../shared/standin lies beside the checkout (a machine without a registry), its stand-in images are used and what
# has none is a stub; elsewhere plain docker compose does it with the real images. Ports are free ones and the project has
# a name of its own, so a stack that runs already is not disturbed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
standin=$(cd .. && pwd)/shared/standin

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
export COMPOSE_PROJECT_NAME=tailkeeper-check-$$ COMPOSE_PROFILES=demo
TAILKEEPER_GRAFANA_PORT=$(free_port); TAILKEEPER_CONSOLE_PORT=$(free_port); TAILKEEPER_PROMETHEUS_PORT=$(free_port)
TAILKEEPER_ALERTMANAGER_PORT=$(free_port)
export TAILKEEPER_GRAFANA_PORT TAILKEEPER_CONSOLE_PORT TAILKEEPER_PROMETHEUS_PORT TAILKEEPER_ALERTMANAGER_PORT
probe=(env PYTHONPATH="$root:$root/exporter:$root/watchdog:$root/dashboards:$root/alerts" python3 -m tests.e2e.compose_probe)

if [ -f "$standin/compose-check.sh" ]; then
  exec bash "$standin/compose-check.sh" --stub "$root" "${probe[@]}"
fi

finish() {
  local rc=$?
  [ "$rc" = 0 ] || docker compose logs --no-color --tail 40 >&2
  docker compose down -v --remove-orphans -t 5 >/dev/null 2>&1 || true
  exit "$rc"
}
trap finish EXIT
docker compose config -q
docker compose build -q
docker compose up -d --wait --wait-timeout 180
"${probe[@]}"

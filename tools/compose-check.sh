#!/usr/bin/env bash
# Runs the compose file for real: build, up, probe, down -v, and whether anything is left. About 5 minutes with the images there;
# more than 8 are a failure (TAILKEEPER_CHECK_LIMIT_S for slow machines; the download of images counts).
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

# Every combination of profiles is a valid file, whether it can run here or not.
every_profile() {
  local profiles
  for profiles in "" demo gpu demo,gpu; do COMPOSE_PROFILES=$profiles docker compose config -q; done
}

round() {
  if [ -f "$standin/compose-check.sh" ]; then
    bash "$standin/compose-check.sh" --stub "$root" "${probe[@]}"
    return
  fi
  trap finish EXIT
  docker compose build -q
  docker compose up -d --wait --wait-timeout 180
  "${probe[@]}"
}

finish() {
  local rc=$?
  [ "$rc" = 0 ] || docker compose logs --no-color --tail 40 >&2
  docker compose down -v --remove-orphans -t 5 >/dev/null 2>&1 || true
  exit "$rc"
}

# What of this project Docker still has: nothing, after `down -v`.
left_over() {
  local of=label=com.docker.compose.project=$COMPOSE_PROJECT_NAME
  docker ps -aq --filter "$of"; docker volume ls -q --filter "$of"; docker network ls -q --filter "$of"
}

(round)
every_profile
left=$(left_over)
[ -z "$left" ] || { echo "compose-check: left behind after down: $left" >&2; exit 1; }
limit=${TAILKEEPER_CHECK_LIMIT_S:-480}
[ "$SECONDS" -le "$limit" ] || { echo "compose-check: took $SECONDS s, more than $limit" >&2; exit 1; }
echo "compose-check: all well in $SECONDS s, and nothing is left"

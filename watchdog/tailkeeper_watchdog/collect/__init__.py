"""From exporters or a Prometheus-compatible server to observations. The only part of the watchdog that reads."""

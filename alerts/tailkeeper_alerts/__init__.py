"""Recording rules, alerts with their promtool cases, and Alertmanager's configuration, made from the metric catalogue."""

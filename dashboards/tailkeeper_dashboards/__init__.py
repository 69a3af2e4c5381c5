"""Grafana boards, made from the metric catalogue with grafana-foundation-sdk."""

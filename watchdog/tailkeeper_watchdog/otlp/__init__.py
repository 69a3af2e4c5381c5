"""The watchdog's own logs and traces over OTLP. ``logs`` and ``traces`` are pure; ``service`` sends, by the exporter's sender."""

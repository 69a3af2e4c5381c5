"""The exporter: readings of LLM backends, told truthfully, at ``/metrics`` and ``/healthz``."""

"""Tailkeeper: keeps the tail latency of self-hosted LLM inference inside its SLA."""

__version__ = "0.1.0"

"""OTLP over HTTP, in and out: spans of engines and gateways become request records, and spans and logs go on to a collector.

Pure parts (``ids``, ``attributes``, ``wire``, ``spans``, ``records``, ``match``, ``known``) take and give values; ``receiver``
and ``sender`` touch the network, and ``service`` puts them together. The messages are OpenTelemetry's own classes, without
its SDK.
"""

"""The watchdog's HTTP surface: what people and boards ask, and the few calls that change something."""

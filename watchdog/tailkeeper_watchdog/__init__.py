"""The watchdog: knows the fleet, decides, and acts through gateways under guards and leases."""

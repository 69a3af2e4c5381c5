"""The policy × backend table of ``check-config``: what would be enforced, what only observed, and why."""

from __future__ import annotations

from tailkeeper.config import Config


def support_table(config: Config) -> str:
    """Lines of text. Asks no gateway: what the kind of gateway can do is known beforehand."""
    from tailkeeper_watchdog.actuators import build_actuator
    from tailkeeper_watchdog.api.documents import support_row
    from tailkeeper_watchdog.app import policy_modes
    from tailkeeper_watchdog.policies import POLICIES
    from tailkeeper_watchdog.reconcile import support_of

    actuators = {g.name: build_actuator(g) for g in config.for_watchdog().gateways}
    modes = policy_modes(config.policies)
    rows = [("policy", "backend", "here", "because")]
    for policy in POLICIES:
        for backend in config.backends:
            gateways = [actuators[ref.name] for ref in backend.gateway]
            row = support_row(modes[policy.name], {knob: support_of(knob, gateways) for knob in policy.knobs})
            rows.append((policy.name, backend.name, row["actuation"].replace("_", " "), row["why"]))
    rows.extend((name, "all", "not enforceable", "this policy is not in this version") for name in config.policies.unbuilt)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join((*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3])).rstrip() for row in rows)

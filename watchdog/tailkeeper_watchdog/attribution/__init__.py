"""Why a finding is: shares of stages, segments, resources and changes that add up to 1. Pure; docs/attribution.md says how.

``attend`` is what the core calls; ``combine.attribute`` is the whole calculation on values.
"""

"""From observations to windows and scores. Pure: values and ``now`` in, values out."""

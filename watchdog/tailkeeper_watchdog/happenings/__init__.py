"""What happened in a tick, one thing at a time, in the words by which boards join three sources.

The decision log, the events in Kubernetes and Alertmanager's alerts name the same things differently by nature. Here is the one
vocabulary: ``names`` (attribute names and the closed sets of their values), ``triggers`` (which value a finding or a decision
has) and ``teller`` (a tick's record to its happenings). All of it is pure; ``otlp`` and ``kube_announcer`` send it.
"""

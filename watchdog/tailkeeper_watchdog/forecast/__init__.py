"""What the next half minute will be like, with the error that such forecasts have had. Moves nothing.

``features``, ``linear``, ``trust``, ``memory`` and ``book`` are pure; ``training`` is the only file that needs scikit-learn
and runs in a process of its own, which ``worker`` starts and ends.
"""

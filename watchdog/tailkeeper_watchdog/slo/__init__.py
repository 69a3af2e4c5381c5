"""Was the promise kept, for whom, over an hour, a day, a month. Pure but for ``store``, which keeps the counts on disk."""

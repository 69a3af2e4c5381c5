"""Who is told of an alert, how often, and in which words: receivers, routes, inhibitions and templates of Alertmanager."""

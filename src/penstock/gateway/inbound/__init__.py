"""The way in: connections of callers, the body of a request, and the checks before an upstream is asked."""

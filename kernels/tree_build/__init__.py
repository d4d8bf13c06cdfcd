"""Best-first draft trees over one pass of a parallel drafter, for a batch of requests at once."""

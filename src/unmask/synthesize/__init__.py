"""Training text written by the base itself: prompts in, chat rows out, as `unmask synthesize` asks."""

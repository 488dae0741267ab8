"""Commands about privacy: what it costs before training, and whether it holds."""

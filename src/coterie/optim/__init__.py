"""How a gradient becomes a step, and projections and transport plans."""

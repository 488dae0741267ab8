"""Guards an entry of a study: its private method, its noise and its plan."""

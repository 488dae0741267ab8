"""The private training of an entry: its method, its noise and its plan."""

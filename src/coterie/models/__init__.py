"""Models as rows of numbers, small models by name, and what is minimised."""

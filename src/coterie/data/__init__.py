"""Data sets, ways to divide them, and the federation they make."""

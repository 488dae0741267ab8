"""Runs one study between organisations: each has its own data on its own machine."""

"""Rows of features, one for each sample: how they are kept, read and hashed."""

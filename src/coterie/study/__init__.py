"""From a study's tables to its results: configuration, set-up, training, search."""

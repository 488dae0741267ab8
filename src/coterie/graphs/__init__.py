"""Who meets whom: graphs by name, gossip matrices, spectra and capacities."""

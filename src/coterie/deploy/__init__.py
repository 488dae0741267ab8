"""The same algorithms between processes and, later, machines."""

"""What a file seems to hold: how it is written, what its columns are and mean."""

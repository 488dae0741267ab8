"""What a file seems to hold: its format, its columns and their roles."""

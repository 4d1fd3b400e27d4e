"""Models that read the text in images."""

"""Model files: the GGUF container, its quantised formats, models by name."""

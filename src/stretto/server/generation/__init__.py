"""Between HTTP and all protocols: from a request's fields to a generation, and back to parts of an answer."""

"""What all protocols share: connections, bodies, errors, models that are served, metrics."""

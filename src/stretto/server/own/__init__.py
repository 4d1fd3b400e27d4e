"""Stretto's own endpoints: sequences, the page and what it shows, models, tasks."""

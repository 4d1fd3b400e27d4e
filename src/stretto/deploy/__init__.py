"""Replicas of a server on Ray Serve; nothing here is imported by the rest of the package."""

"""Ollama's API: generate, chat, and models with their files."""

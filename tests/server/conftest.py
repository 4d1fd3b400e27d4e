"""A server with a mock model, and clients of it; a test file that needs another server has its own."""

import httpx
import openai
import pytest

from serving import serving


@pytest.fixture(scope="module")
def server():
    """A model that says hello."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def web(server):
    """Requests by hand."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(server):
    """OpenAI's package."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made

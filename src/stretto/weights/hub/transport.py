"""The standard library's HTTP client, as web.py uses it.

It is imported when something is fetched: loading a model that is here takes 30 ms less without it.
"""

from __future__ import annotations

import email.utils
import http.client
import urllib.request
from collections.abc import Mapping
from typing import Any

FAILURES = (OSError, http.client.HTTPException)
BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError)
parse_date = email.utils.parsedate_to_datetime


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """Returns errors and redirects as answers."""

    def http_response(self, request: Any, response: Any) -> Any:
        """The response as it is."""
        return response

    https_response = http_response


class Client:
    """Opens addresses by HTTP and HTTPS alone: there is no handler for files, FTP or data."""

    def __init__(self) -> None:
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            _EveryStatus(),
        ):
            self._opener.add_handler(handler)

    def open(self, url: str, headers: Mapping[str, str], seconds: float) -> Any:
        """The response to one request."""
        return self._opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=seconds)

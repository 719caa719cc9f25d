"""Tells a webhook what a reconcile did. Its URL may hold a secret, so no message shows more of it than the host."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from migrate.errors import ReexportError

_TRIES = 2
_PAUSE_SECONDS = 1.0


def post(url: str, document: Mapping[str, Any], *, timeout_seconds: float) -> None:
    """Send ``document`` as JSON by POST; a second try after a second. Redirects are not followed.

    Raises :class:`ReexportError` if neither is answered with a status of 200 to 299 in time.
    """
    data = json.dumps(document).encode()
    opener = urllib.request.build_opener(_NoRedirect)
    bare, headers = _without_user(url)
    found = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        request = urllib.request.Request(bare, data, headers, method="POST")
        try:
            with opener.open(request, timeout=timeout_seconds) as response:
                response.read(1024)
            return
        except urllib.error.HTTPError as error:
            found = f"HTTP status {error.code}"
            error.close()
        except OSError as error:
            found = str(getattr(error, "reason", None) or error)
        except (ValueError, http.client.HTTPException) as error:
            found = f"no usable URL or no HTTP server: {type(error).__name__}"  # its text may quote the URL
    raise ReexportError(
        "the webhook cannot be reached",
        where=f"notifications.webhook: {host_of(url)}",
        found=found,
        remedy="the exports are not affected; check the URL and the network",
    )


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """The URL without ``user:password@``, and the headers, which carry them instead."""
    headers = {"Content-Type": "application/json", "User-Agent": "reexport"}
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at:
        word = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        headers["Authorization"] = f"Basic {word}"
    return f"{scheme}{separator}{host}{slash}{path}", headers


def host_of(url: str) -> str:
    """Scheme and host of a URL, without user, path and query."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or '?'}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None: the redirect becomes an HTTPError; the document goes to no other host."""
        return

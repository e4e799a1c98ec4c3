"""How a worker or a triggerer shows the API server who it is: a user's name and password, turned into tokens.

One rule: the password goes to Airflow's `/auth/token` and nowhere else, and what it is given there is kept in memory
until shortly before it ends. Neither is in any error or repr.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time

import httpx

from dispatch_core.errors import StoreUnavailable

EARLY_SECONDS = 60.0
"""How long before its end a token is not used any more."""

UNTOLD_SECONDS = 600.0
"""How long one is kept that does not say when it ends."""


class Login:
    """A user of Airflow. `url` is Airflow's own address, under which `/auth/token` is."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url.rstrip("/")
        self._user, self._password = user, password
        self._token = ""
        self._until = 0.0
        self._turn = asyncio.Semaphore(1)

    def __repr__(self) -> str:
        return f"Login({self._url!r}, {self._user!r})"

    async def header(self, client: httpx.AsyncClient) -> str:
        """The header with a token that still counts. Raises StoreUnavailable where none is given."""
        async with self._turn:
            if time.time() > self._until:
                self._token = await self._asked(client)
                self._until = ends(self._token, time.time()) - EARLY_SECONDS
            return f"Bearer {self._token}"

    def refused(self) -> bool:
        """Ask for a new one: a server that was given another secret knows no old one."""
        self._until = 0.0
        return True

    async def _asked(self, client: httpx.AsyncClient) -> str:
        where = f"{self._url}/auth/token"
        try:
            answer = await client.post(where, json={"username": self._user, "password": self._password})
        except (httpx.HTTPError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise StoreUnavailable(f"{where} did not answer: {text}") from None
        if not answer.is_success:
            raise StoreUnavailable(f"{where} gives the user {self._user!r} no token, and answers {answer.status_code}")
        try:
            token = answer.json()["access_token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise StoreUnavailable(f"{where} answers with no token; is that Airflow's address?")
        return token


def ends(token: str, now: float) -> float:
    """When a token ends, in seconds since 1970: as it says itself, unchecked, as only its issuer could."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return now + UNTOLD_SECONDS

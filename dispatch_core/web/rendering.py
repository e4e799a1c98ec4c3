"""Pages as HTML: templates in which nothing is ever markup but the templates themselves.

One rule: whatever a user, a job or a scheduler wrote is shown as text: escaped, and with what cannot be printed spelled
out. A page loads nothing from elsewhere, runs no script but the one file beside it, and works without that.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from dispatch_core.amounts import say_ago, say_bytes, say_seconds

HERE = Path(__file__).parent

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",  # not no-referrer: forms would come without their origin
    "cache-control": "no-store",
}

_MEDIA = {"style.css": "text/css", "refresh.js": "text/javascript", "icon.svg": "image/svg+xml"}
_FILES = {name: (HERE / "static" / name).read_bytes() for name in _MEDIA}
_MARK = hashlib.sha256(b"".join(_FILES.values())).hexdigest()[:12]


def printable(value: object) -> object:
    """Text with what cannot be printed spelled out, so that nothing turns a line around or hides in it.

    >>> printable("a\\u202eb")
    'a\\\\u202eb'
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in value)


def moment(at: datetime, now: datetime) -> Markup:
    """A time in UTC, and how long ago it was."""
    iso = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ago = escape(say_ago(at, now))
    return Markup('<time datetime="{0}">{0}</time> <span class="ago">{1}</span>').format(iso, ago)


def utc(at: datetime) -> str:
    """A time of day in UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%SZ")


def _query(**fields: object) -> str:
    return urlencode({name: str(value) for name, value in fields.items() if value is not None})


_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    finalize=printable,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["query"] = _query
_environment.filters |= {"seconds": say_seconds, "bytes": say_bytes, "utc": utc}


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template; links in it begin with `base`, wherever the pages are mounted."""
    base = request.scope.get("root_path", "").rstrip("/")
    now = datetime.now(UTC)

    def when(at: datetime) -> Markup:
        return moment(at, now)

    text = _environment.get_template(template).render(
        base=base, mark=_MARK, now=now, when=when, ago=lambda at: say_ago(at, now), **values
    )
    return HTMLResponse(text, status, HEADERS)


async def static(request: Request) -> Response:
    """The style, the script and the icon: the same for everybody, and no secret of anybody."""
    name = request.path_params["name"]
    if name not in _FILES:
        return PlainTextResponse("there is no such file\n", 404)
    headers = {"cache-control": "public, max-age=86400", "x-content-type-options": "nosniff"}
    return Response(_FILES[name], media_type=_MEDIA[name], headers=headers)

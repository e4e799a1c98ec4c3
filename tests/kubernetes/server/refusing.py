"""The answers of an API server that says no: Status objects, with the words that a real server uses.

One rule: whatever refuses raises `Refused`, and the HTTP surface alone turns it into a response.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.server.kinds import Resource

PATCH_FAILED = "the server rejected our request due to an error in our request"


class Refused(Exception):
    """A request that the server does not carry out."""

    def __init__(
        self,
        code: int,
        reason: str | None,
        message: str,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason is not None:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return {**body, "code": self.code}


class NoSuchPath(Exception):
    """A path that no handler knows: plain text, no Status."""


def _about(resource: Resource, name: str, *, kind: bool = False) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = resource.kind if kind else resource.plural
    return details


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> Refused:
    return Refused(404, "NotFound", f'{resource.qualified} "{name}" not found', _about(resource, name))


def already_exists(resource: Resource, name: str, *, deleting: bool) -> Refused:
    message = f'{resource.qualified} "{name}" already exists'
    message = f"object is being deleted: {message}" if deleting else message
    return Refused(409, "AlreadyExists", message, _about(resource, name))


def modified(resource: Resource, name: str) -> Refused:
    message = (
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return Refused(409, "Conflict", message, _about(resource, name))


def conflict(resource: Resource, name: str, why: str) -> Refused:
    message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
    return Refused(409, "Conflict", message, _about(resource, name, kind=True))


def invalid(resource: Resource, name: str, causes: list[tuple[str, str, str]]) -> Refused:
    """`causes` are (field, reason, message), as in details.causes."""
    parts = list(dict.fromkeys(f"{field}: {message}" for field, _, message in causes))
    what = parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"
    details = _about(resource, name, kind=True)
    details["causes"] = [{"reason": reason, "message": message, "field": field} for field, reason, message in causes]
    return Refused(422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {what}', details)


def patch_failed() -> Refused:
    """A failed test of a JSON Patch: which one is not said."""
    return Refused(422, "Invalid", PATCH_FAILED, {})


def forbidden(resource: Resource, name: str, why: str, causes: list[dict[str, str]] | None = None) -> Refused:
    details = _about(resource, name)
    if causes:
        details["causes"] = causes
    return Refused(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details)


def not_allowed(user: str, verb: str, resource: Resource, name: str, namespace: str | None) -> Refused:
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    named = f'{resource.qualified} "{name}"' if name else resource.qualified
    message = (
        f'{named} is forbidden: User "{user}" cannot {verb} resource "{resource.plural}" '
        f'in API group "{resource.group}" {where}'
    )
    return Refused(403, "Forbidden", message, _about(resource, name))


def unauthorized() -> Refused:
    return Refused(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> Refused:
    return Refused(410, "Expired", message)


def internal(message: str) -> Refused:
    return Refused(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def too_many(message: str, retry_after: int) -> Refused:
    details = {"retryAfterSeconds": retry_after} if retry_after else {}
    return Refused(429, "TooManyRequests", message, details, retry_after)

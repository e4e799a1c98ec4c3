"""The kinds of patch: JSON Patch, merge patch, strategic merge patch, and server-side apply for a plain case.

One rule: a patch is worked out on a copy, whole or not at all; what it may change is judged afterwards, like any other
write. Strategic merge knows no merge keys here (lists are replaced), and apply is a merge that creates what is absent.
"""

from __future__ import annotations

import json
from typing import Any

import jsonpatch

from tests.kubernetes.server.kinds import Resource
from tests.kubernetes.server.refusing import Refused, bad_request, patch_failed
from tests.kubernetes.server.storage import copied

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
UNKNOWN_FORMAT = "the body of the request was in an unknown format - accepted media types include:"


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _json_patch(found: dict[str, Any], patch: Any) -> Any:
    if not isinstance(patch, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    result = copied(found)
    try:
        for operation in patch:
            if _tests_absence(result, operation):
                continue
            result = jsonpatch.apply_patch(result, [operation])
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise patch_failed() from error
    return result


def _tests_absence(found: dict[str, Any], operation: dict[str, Any]) -> bool:
    """A test of a missing path for null passes, where only its last part is missing."""
    if operation.get("op") != "test" or operation.get("value", ...) is not None:
        return False
    place, part = jsonpatch.JsonPointer(operation["path"]).to_last(found)
    return isinstance(place, dict) and place.get(part) is None


def patched(resource: Resource, found: dict[str, Any], content_type: str, body: bytes) -> dict[str, Any]:
    """The object as the patch wants it."""
    try:
        patch = json.loads(body)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if content_type == JSON_PATCH:
        result = _json_patch(found, patch)
    elif content_type in (MERGE, APPLY) or (content_type == STRATEGIC and not resource.custom):
        result = merged(found, patch)
    elif resource.custom and content_type == STRATEGIC:
        raise Refused(415, "UnsupportedMediaType", f"{UNKNOWN_FORMAT} {JSON_PATCH}, {MERGE}, {APPLY}")
    else:
        raise Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    if not isinstance(result, dict) or not isinstance(result.get("metadata"), dict):
        raise patch_failed()
    return result

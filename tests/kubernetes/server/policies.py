"""ValidatingAdmissionPolicies: enforced once a policy and a binding that names it were created.

One rule: a policy is what its expressions say; where one has no value the write is refused, as failurePolicy Fail asks,
and of several that refuse only one is named. Not here: namespaceSelector, paramKind, auditing, messageExpression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tests.kubernetes.server import cel
from tests.kubernetes.server.kinds import BINDING, POLICY, Resource
from tests.kubernetes.server.refusing import Refused, forbidden, invalid
from tests.kubernetes.server.storage import Object, Store
from tests.kubernetes.server.writing import Write

compiled: Callable[[str], cel.Evaluate] = lru_cache(maxsize=500)(cel.compiled)


def _meets(found: Object | None, selector: dict[str, Any]) -> bool:
    if found is None:
        return False
    labels = found["metadata"].get("labels") or {}
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    for asked in selector.get("matchExpressions") or ():
        key, values = asked["key"], asked.get("values") or ()
        met = {
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
        }
        if not met[asked["operator"]]:
            return False
    return True


def _covers(rule: dict[str, Any], resource: Resource, verb: str) -> bool:
    pairs = (("apiGroups", resource.group), ("apiVersions", resource.version))
    pairs += (("operations", verb), ("resources", resource.plural))
    return all(value in rule[name] or "*" in rule[name] for name, value in pairs)


class Policies:
    """The policies of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def validate(self, resource: Resource, before: Object | None, after: Object, write: Write) -> None:
        if resource is POLICY:
            self._check(after)
            return
        verb = "CREATE" if before is None else "UPDATE"
        for binding, policy in reversed(list(self._bound())):
            constraints = policy["spec"]["matchConstraints"]
            selector = constraints.get("objectSelector") or {}
            seen = not selector or _meets(after, selector) or _meets(before, selector)
            if seen and any(_covers(rule, resource, verb) for rule in constraints["resourceRules"]):
                names = self._names(resource, before, after, write, verb)
                why = self._refusal(policy, names)
                if why is not None:
                    raise self._denied(resource, after, policy, binding, why)

    def _bound(self) -> Iterator[tuple[Object, Object]]:
        for binding in self._store.all(BINDING):
            policy = self._store.get(POLICY, "", binding["spec"]["policyName"])
            if policy is not None and "Deny" in binding["spec"]["validationActions"]:
                yield binding, policy

    @staticmethod
    def _names(resource: Resource, before: Object | None, after: Object, write: Write, verb: str) -> cel.Names:
        typed = {"apiVersion": resource.api_version, "kind": resource.kind}
        metadata = after["metadata"]
        request = {"operation": verb, "name": metadata["name"], "namespace": metadata.get("namespace", "")}
        request |= {"userInfo": {"username": write.user}, "dryRun": write.dry_run}
        old = None if before is None else {**typed, **before}
        return {"object": {**typed, **after}, "oldObject": old, "request": request}

    @staticmethod
    def _refusal(policy: Object, names: cel.Names) -> str | None:
        spec = policy["spec"]
        try:
            if not all(compiled(each["expression"])(names) for each in spec.get("matchConditions") or ()):
                return None
            variables: dict[str, Any] = {}
            names = {**names, "variables": variables}
            for variable in spec.get("variables") or ():
                variables[variable["name"]] = compiled(variable["expression"])(names)
        except cel.CelError as error:
            return str(error)
        for validation in spec["validations"]:
            try:
                if not compiled(validation["expression"])(names):
                    return str(validation.get("message") or f"failed expression: {validation['expression']}")
            except (cel.CelError, TypeError, AttributeError) as error:
                return f"expression '{validation['expression']}' resulted in error: {error}"
        return None

    @staticmethod
    def _denied(resource: Resource, after: Object, policy: Object, binding: Object, why: str) -> Refused:
        names = f"'{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
        message = f"ValidatingAdmissionPolicy {names} denied request: {why}"
        refused = forbidden(resource, after["metadata"]["name"], message, [{"message": message}])
        refused.code, refused.reason = 422, "Invalid"
        return refused

    @staticmethod
    def _check(policy: Object) -> None:
        spec = policy["spec"]
        for field in ("matchConditions", "variables", "validations"):
            for index, row in enumerate(spec.get(field) or ()):
                try:
                    compiled(row["expression"])
                except cel.NotCel as error:
                    path = f"spec.{field}[{index}].expression"
                    message = f'Invalid value: "{row["expression"]}": compilation failed: ERROR: {error}'
                    raise invalid(POLICY, policy["metadata"]["name"], [(path, "FieldValueInvalid", message)]) from error

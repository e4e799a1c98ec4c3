"""Who may do what: bearer tokens, and rules as an RBAC role has them.

One rule: a request without a known token is 401, and what no rule of its user allows is 403 before anything is looked
up, whether it exists or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.server.kinds import Resource
from tests.kubernetes.server.refusing import not_allowed, unauthorized

ADMIN_TOKEN = "admin-token"


@dataclass
class User:
    """A name, and rules; `rules` of None is everything."""

    name: str
    rules: list[dict[str, Any]] | None = None
    """Rules of a Role or ClusterRole as its manifest has them: apiGroups, resources, verbs."""
    namespaces: frozenset[str] | None = None
    """Where the rules hold; None is everywhere and cluster-wide."""


@dataclass
class Access:
    """The users of one server, by token."""

    users: dict[str, User] = field(default_factory=lambda: {ADMIN_TOKEN: User("admin")})

    def add(self, token: str, name: str, rules: list[dict[str, Any]], namespaces: list[str] | None = None) -> None:
        self.users[token] = User(name, rules, None if namespaces is None else frozenset(namespaces))

    def user(self, authorization: str | None) -> User:
        token = (authorization or "").removeprefix("Bearer ")
        if token not in self.users:
            raise unauthorized()
        return self.users[token]

    @staticmethod
    def check(user: User, verb: str, resource: Resource, name: str, namespace: str | None, subresource: str) -> None:
        if user.rules is None:
            return
        wanted = f"{resource.plural}/{subresource}" if subresource else resource.plural
        everywhere = user.namespaces is None or (namespace is not None and namespace in user.namespaces)
        if not (everywhere and any(_allows(rule, verb, resource.group, wanted) for rule in user.rules)):
            raise not_allowed(user.name, verb, resource, name, namespace)


def _allows(rule: dict[str, Any], verb: str, group: str, wanted: str) -> bool:
    pairs = ((rule["verbs"], verb), (rule["apiGroups"], group), (rule["resources"], wanted))
    return all(name in listed or "*" in listed for listed, name in pairs)

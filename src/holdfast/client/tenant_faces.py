"""The faces of tenants: each is made once, and shares all but the place with the `Holdfast` that it came from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.database import make_places
from holdfast.database.tx import Store
from holdfast.errors import Misuse
from holdfast.runtime import Runtime

if TYPE_CHECKING:
    from holdfast.client.tenant_store import Registry, TenantStore
    from holdfast.settings import Settings

F = TypeVar("F")


class TenantFaces(Generic[F]):
    """The faces of the tenants of one `Holdfast`, each made once by *make_face*; none without `tenants=True`."""

    def __init__(
        self, store: Store, settings: Settings, runtime: Runtime, make_face: Callable[[TenantStore, Settings], F]
    ) -> None:
        self._store = store
        self._settings = settings
        self._runtime = runtime
        self._make_face = make_face
        self._lock = threading.Lock()
        self._registry: Registry | None = None
        self._faces: dict[str, F] = {}
        self._stores: dict[str, TenantStore] = {}

    @property
    def registry(self) -> Registry:
        """What is known of the tenants; raises `Misuse` without `tenants=True`."""
        if self._registry is None:
            if not self._settings.tenants:
                if hasattr(self._store, "place"):
                    raise Misuse("this is the face of a tenant; ask the Holdfast object that it came from for others")
                raise Misuse("this Holdfast has no tenants; write Holdfast(database, tenants=True)")
            from holdfast.client.tenant_store import Registry  # only a program with tenants needs it

            places = make_places(self._store, self._settings, self._runtime)
            self._registry = Registry(self._store, places, self._runtime)
        return self._registry

    def face(self, name: str) -> F:
        """Give the face of the tenant *name*; whether there is one is seen when it is used."""
        from holdfast.tenancy import check_tenant_name

        registry = self.registry
        if (known := self._faces.get(check_tenant_name(name))) is not None:
            return known
        with self._lock:
            if name not in self._faces:
                from holdfast.client.tenant_store import TenantStore

                store = TenantStore(name, registry)
                self._stores[name], self._faces[name] = store, self._make_face(store, registry.places.settings(name))
            return self._faces[name]

    def store(self, name: str) -> TenantStore:
        """Give the store of a tenant's face."""
        self.face(name)
        return self._stores[name]

    def all(self) -> Sequence[F]:
        """Give the faces that were made until now."""
        return list(self._faces.values())

    def forget(self) -> None:
        """Forget what the registry said."""
        if self._registry is not None:
            self._registry.forget()

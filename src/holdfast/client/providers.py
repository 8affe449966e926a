"""Transaction providers: who opens the transaction of a block, if it is to be one of the user's own kind.

A `Provider` makes transactions of one library, in the colours that it serves: `SQLAlchemy(engine)`,
`Django("default")`. It is given once, by `Holdfast(…, transactions=provider)`, or for one block, by `using=`, where the
library's own object will do. `Opener` is what blocks ask: it opens ours, or a provider's.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from holdfast.database import migrations
from holdfast.database.borrowed import Borrower, Identity
from holdfast.database.tx import First, OpenTx, Store
from holdfast.errors import Misuse

if TYPE_CHECKING:
    from holdfast.database.borrowed.orm_transaction import UserTransaction

# by name, for integrations stand above us; each is imported when an object of its library has been given
PROVIDERS = {
    "sqlalchemy.engine.base.Engine": ("holdfast.integrations.sqlalchemy", "SQLAlchemy"),
    "sqlalchemy.orm.session.sessionmaker": ("holdfast.integrations.sqlalchemy", "SQLAlchemy"),
    "sqlalchemy.orm.scoping.scoped_session": ("holdfast.integrations.sqlalchemy", "SQLAlchemy"),
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": ("holdfast.integrations.sqlalchemy", "SQLAlchemy"),
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": ("holdfast.integrations.sqlalchemy", "SQLAlchemy"),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": ("holdfast.integrations.sqlalchemy", "SQLAlchemy"),
    "builtins.str": ("holdfast.integrations.django", "Django"),
}


@runtime_checkable
class Provider(Protocol):
    """Makes transactions of the user's own kind."""

    def serves(self, *, is_async: bool) -> bool:
        """Tell whether it has transactions for handlers of this colour."""

    def transaction(self, *, is_async: bool) -> UserTransaction:
        """Make a transaction that has not begun yet, of a colour that it serves."""

    def refusal(self, *, is_async: bool) -> str:
        """Say what to write instead, in a handler of a colour that it does not serve."""


def as_provider(given: object) -> Provider:
    """Make a provider of *given*: it is one, or an object of a library that has one; or raise `Misuse`."""
    if isinstance(given, Provider):
        return given
    for each in type(given).__mro__:
        if (found := PROVIDERS.get(f"{each.__module__}.{each.__qualname__}")) is not None:
            module, name = found
            make = cast("Callable[[object], Provider]", getattr(import_module(module), name))
            return make(given)
    raise Misuse(
        f"a {type(given).__module__}.{type(given).__qualname__} provides no transactions; give an engine or a "
        "sessionmaker of SQLAlchemy, a Django alias, or a provider"
    )


class HasUrl(Protocol):
    """An engine of SQLAlchemy's, of either colour: it knows where its database is."""

    @property
    def url(self) -> Any:
        """The address, as its library has it."""


def address_of(engine: HasUrl) -> str:
    """Write where the database of *engine* is, as a setting; or raise `Misuse`."""
    for each in type(engine).__mro__:
        if (found := PROVIDERS.get(f"{each.__module__}.{each.__qualname__}")) is not None and hasattr(engine, "url"):
            address: str = import_module(found[0]).address_of(engine)
            return address
    raise Misuse(
        f"a {type(engine).__module__}.{type(engine).__qualname__} is no database; give a SQLite file's path, a "
        "postgresql:// address, or an engine of SQLAlchemy"
    )


class Opener:
    """Opens the transactions of blocks, in both colours; *default* is whose, where `using=` does not say."""

    def __init__(
        self,
        store: Store,
        lender: Borrower,
        monotonic: Callable[[], float],
        transaction_seconds: float,
        default: Provider | None = None,
    ) -> None:
        self._store = store
        self._lender = lender
        self._monotonic = monotonic
        self._seconds = transaction_seconds
        self._default = default

    async def begin(self, lease_seconds: float, first: First | None = None, using: object = None) -> OpenTx:
        """Open a transaction around a user's code; as `Store.begin`, if it is ours."""
        provider = self._provider(using, is_async=True)
        if provider is None:
            return await self._store.begin(lease_seconds, first)
        return await self._begin_provided(provider, self._identity, lease_seconds, first, is_async=True)

    async def begin_blocking(self, lease_seconds: float, first: First | None = None, using: object = None) -> OpenTx:
        """Open a transaction around a user's code, blocking: nothing suspends."""
        provider = self._provider(using, is_async=False)
        if provider is None:
            return self._store.begin_sync(lease_seconds, first)
        return await self._begin_provided(provider, self._identity_blocking, lease_seconds, first, is_async=False)

    async def _begin_provided(
        self, provider: Provider, identity: Identity, lease_seconds: float, first: First | None, *, is_async: bool
    ) -> OpenTx:
        # only a program with a transaction provider needs them
        from holdfast.database.borrowed.orm_transaction import begin_provided
        from holdfast.database.borrowed.transaction_watch import TransactionWatch

        transaction = provider.transaction(is_async=is_async)
        watch = TransactionWatch(self._store.database, self._monotonic, min(self._seconds, lease_seconds))
        return await begin_provided(transaction, self._lender, identity, watch, lease_seconds, first, is_async=is_async)

    def _provider(self, using: object, *, is_async: bool) -> Provider | None:
        """Find whose transaction it is to be; a default of the other colour leaves it to us."""
        if using is None:
            return self._default if self._default is not None and self._default.serves(is_async=is_async) else None
        provider = as_provider(using)
        if not provider.serves(is_async=is_async):
            raise Misuse(provider.refusal(is_async=is_async))
        return provider

    async def _identity(self) -> str | None:
        return await self._store.read(migrations.identity, self._store.database)

    async def _identity_blocking(self) -> str | None:
        return self._store.read_sync(migrations.identity, self._store.database)

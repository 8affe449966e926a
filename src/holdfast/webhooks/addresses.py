"""Which addresses webhooks may go to: checked when one is set, and again, by what its name leads to, at every try.

A receiver's address comes from people who may not see our network, and a request of ours can do what they cannot: reach
a database on this machine, or the cloud's own service at 169.254.169.254. So an address is taken apart here, once, and
only these parts are used from then on: no other parser sees the text. Its name is resolved once for a try; *every*
address that comes of it must be public, and the connection goes to one of just these. What an IPv6 address only wraps
(IPv4-mapped and -compatible, NAT64, 6to4, Teredo) is judged by what is inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

from holdfast.errors import InvalidAddress

if TYPE_CHECKING:
    from holdfast.settings import Settings

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

LONGEST = 2_000
USUAL_PORTS = {"https": 443, "http": 80}
HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
PRINTABLE = re.compile(r"[^\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff\\]*")
KEPT_AS_IT_IS = "!#$%&'()*+,/:;=?@[]~"

GLOBAL_UNICAST = IPv6Network("2000::/3")
COMPATIBLE, NAT64 = IPv6Network("::/96"), IPv6Network("64:ff9b::/96")
NOT_PUBLIC = (
    *(IPv4Network("192.0.0.0/24"), IPv6Network("3fff::/20")),  # of which older Pythons do not know it
    IPv4Network("168.63.129.16/32"),  # by its number it is public, but it is Azure's own service for each machine there
)
UNWRAPPED_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Target:
    """An address taken apart; *host* is a name in ASCII or an IP address, without brackets; *path* has the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The host as the header `Host` has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == USUAL_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def literal(self) -> Address | None:
        """The IP address, if it is one and not a name."""
        return _literal(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRules:
    """What the settings say of addresses: http or not, ports, hosts, and private networks.

    >>> AddressRules().check("https://example.com/hooks?to=7").path
    '/hooks?to=7'
    """

    allows_http: bool = False
    ports: tuple[int, ...] | None = (443, 80)
    """None allows any."""
    hosts: tuple[str, ...] = ()
    """None of them allows any; `*.example.com` stands for every name below it."""
    private: bool | tuple[Network, ...] = False
    """True allows any address at all, networks allow those in them."""

    @classmethod
    def of(cls, settings: Settings) -> AddressRules:
        """Read them from the settings."""
        return cls(
            allows_http=settings.webhook_http,
            ports=settings.webhook_ports,
            hosts=settings.webhook_hosts,
            private=settings.webhook_private_addresses,
        )

    def check(self, address: str) -> Target:
        """Take *address* apart, or raise `InvalidAddress` with what is wrong with it; asks no name server."""
        target = take_apart(address)
        if target.scheme != "https" and not self.allows_http:
            raise InvalidAddress("it is not https; use an https:// address, or set webhook_http=True", shown(target))
        if self.ports is not None and target.port not in self.ports:
            raise InvalidAddress(f"port {target.port} is not in webhook_ports; use another, or add it", shown(target))
        if self.hosts and not any(_fits(target.host, each) for each in self.hosts):
            raise InvalidAddress("its host is not in webhook_hosts; use another, or add it", shown(target))
        if (literal := target.literal) is not None:
            self.require([literal], target)
        elif self.private is False and _is_local(target.host):
            raise InvalidAddress("it leads to this machine; webhook_private_addresses can allow it", shown(target))
        return target

    def require(self, addresses: Sequence[Address], target: Target) -> None:
        """Raise `InvalidAddress` unless every one of *addresses*, which *target* leads to, may be connected to."""
        refused = [each for each in addresses if not self.permits(each)]
        if refused or not addresses:
            found = f"it leads to {refused[0]}, which is not public" if refused else "it leads nowhere"
            raise InvalidAddress(f"{found}; webhook_private_addresses can allow it", shown(target))

    def permits(self, address: Address) -> bool:
        """Tell whether webhooks may go to *address*."""
        if self.private is True:
            return True
        return all(
            is_public(each) or any(each in network for network in self.private or ()) for each in unwrapped(address)
        )


def take_apart(address: str) -> Target:
    """Take an http or https address apart, or raise `InvalidAddress`."""
    if len(address) > LONGEST or not PRINTABLE.fullmatch(address):
        raise InvalidAddress(f"it must be a text of at most {LONGEST} characters, without spaces and backslashes")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:  # whose text may repeat a password
        raise InvalidAddress("it cannot be parsed; check its host and port") from None
    if parts.scheme not in USUAL_PORTS or not parts.hostname:
        raise InvalidAddress("it must begin with https:// and a host")
    if "@" in parts.netloc:
        raise InvalidAddress("it contains a user or a password; remove them: receivers check the signature")
    if "#" in address:
        raise InvalidAddress("it has a fragment (#…), which is never sent; remove it")
    if port == 0:
        raise InvalidAddress("there is no port 0; give another port")
    return Target(parts.scheme, _host(parts), port or USUAL_PORTS[parts.scheme], _path(parts))


def receiver_of(address: str) -> str:
    """Name the receiver at *address* by its host, port and path; a query makes no other one of it.

    >>> receiver_of("https://example.com/hooks?to=7")
    'example.com:443/hooks'
    """
    try:
        target = take_apart(address)
    except InvalidAddress:  # a stricter release than that which took it: to post it will say so
        return "unreadable/"
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}{target.path.partition('?')[0]}"


def shown(target: Target) -> str:
    """Write *target* for people and logs, without path and query, which may hold what only the receiver may know."""
    return f"{target.scheme}://{target.authority}/…"


def _host(parts: SplitResult) -> str:
    name = (parts.hostname or "").removesuffix(".")
    if "[" in parts.netloc or ":" in name:
        if "%" in name or not isinstance(_literal(name), IPv6Address):
            raise InvalidAddress("its host in brackets is not an IPv6 address")
        return str(IPv6Address(name))
    try:
        host = name.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        raise InvalidAddress("its host is not a valid name") from None
    if not HOST.fullmatch(host):
        raise InvalidAddress("its host is not a valid name")
    if NUMBER.fullmatch(host.rpartition(".")[2]) and not isinstance(_literal(host), IPv4Address):
        raise InvalidAddress("its host is a number; write an IPv4 address as four numbers")
    return host


def _path(parts: SplitResult) -> str:
    query = f"?{parts.query}" if parts.query else ""
    return quote((parts.path or "/") + query, safe=KEPT_AS_IT_IS)


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _fits(host: str, allowed: str) -> bool:
    wanted = allowed.lower().removesuffix(".")
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


def _is_local(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def unwrapped(address: Address) -> tuple[Address, ...]:
    """Give the addresses that *address* stands for: itself, or the IPv4 addresses that it wraps."""
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.teredo is not None:
        return address.teredo
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address in NAT64 or (address in COMPATIBLE and int(address) > 1):
        return (IPv4Address(int(address) & UNWRAPPED_BITS),)
    return (address,)


def is_public(address: Address) -> bool:
    """Tell whether an address that wraps no other is one that anybody on the internet can reach.

    `is_global` alone calls multicast and much of IPv6 so that nobody was ever given.
    """
    if address.is_multicast or not address.is_global or any(address in each for each in NOT_PUBLIC):
        return False
    return isinstance(address, IPv4Address) or address in GLOBAL_UNICAST

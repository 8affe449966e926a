"""Where a request comes from: which hosts are served, which sites may send, and whom a proxy speaks for.

A browser sends a user's cookie with whatever any page asks of it. So what may change something is taken only from our
own pages, or from origins that are named; a bearer token needs none of that, for no browser sends one by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from holdfast.errors import InvalidSettings, shown
from holdfast.http.problems import CrossSite

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OF_PROXIES = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""What a proxy leaves in a request, one of ours or not."""
ANY = "*"


class Client(NamedTuple):
    """Who sends a request, as far as the connection and trusted proxies tell."""

    address: str
    scheme: str
    host: str
    """The `Host` without its port, in lower case."""
    is_behind_proxy: bool
    is_direct: bool = True
    """Whether nothing says that a proxy, known or not, has passed it on."""

    @property
    def is_private(self) -> bool:
        """Tell whether nobody between can read it: it comes over TLS, or does not leave this machine."""
        return self.scheme == "https" or self.is_local

    @property
    def is_local(self) -> bool:
        """Tell whether it is for this machine by its name, and comes from it."""
        return self.host in LOOPBACK_NAMES and self.is_direct and is_loopback(self.address)

    @property
    def source(self) -> str:
        """Give what rates know the sender by: the address, or the network of an IPv6 address, for who has one has all.

        >>> Client("2001:db8::7", "http", "localhost", False).source, Client("10.0.0.7", "http", "", False).source
        ('2001:db8::/64', '10.0.0.7')
        """
        is_network = ":" in self.address and _is_address(self.address)
        return str(ip_network((self.address, 64), strict=False)) if is_network else self.address


@dataclass(frozen=True, slots=True)
class Origins:
    """The rules of one application."""

    hosts: tuple[str, ...]
    origins: frozenset[str]
    proxies: tuple[IPv4Network | IPv6Network, ...]

    @classmethod
    def of(cls, hosts: Sequence[str], origins: Sequence[str], proxies: Sequence[str]) -> Origins:
        """Read the rules; raise `InvalidSettings` for what is none."""
        for name, several in (("hosts", hosts), ("origins", origins), ("proxies", proxies)):
            if isinstance(several, str):
                raise InvalidSettings(f"{name} must be a list of texts, got {shown(several)}; write {name}=[…]")
        return cls(
            tuple(map(_check_host, hosts)), frozenset(map(_check_origin, origins)), tuple(map(_check_proxy, proxies))
        )

    def client(self, scope: Scope, headers: Headers) -> Client:
        """Tell who sends a request; what a proxy says of it counts only if it is one of ours."""
        address = _unmapped((scope.get("client") or ("", 0))[0])
        scheme, is_behind = scope.get("scheme", "http"), self.is_proxy(address)
        if is_behind:
            scheme = (_listed(headers, "x-forwarded-proto") or [scheme])[-1].lower()
            address = self._forwarded(headers, address)
        is_direct = not is_behind and not any(name in headers for name in OF_PROXIES)
        return Client(address, scheme, bare_host(headers.get("host", "")), is_behind, is_direct)

    def is_proxy(self, address: str) -> bool:
        """Tell whether *address* is that of a trusted proxy."""
        if not self.proxies:  # as nearly everywhere, for each request
            return False
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.proxies)

    def _forwarded(self, headers: Headers, address: str) -> str:
        """Give the nearest address that is no proxy of ours; what stands before it, anybody may have written."""
        for each in reversed(_listed(headers, "x-forwarded-for")):
            if not _is_address(each):
                break
            address = _unmapped(each)
            if not self.is_proxy(address):
                break
        return address

    def serves(self, host: str) -> bool:
        """Tell whether requests for *host* are served, by the rules alone."""
        if host in LOOPBACK_NAMES:
            return True
        return any(each in (ANY, host) or (each.startswith("*.") and host.endswith(each[1:])) for each in self.hosts)

    def allows(self, origin: str) -> bool:
        """Tell whether pages of *origin* may ask, and read the answers."""
        return origin in self.origins

    def refuse_cross_site(self, method: str, headers: Headers, client: Client) -> None:
        """Raise `CrossSite` if a page of another site may have sent this, and it may change something."""
        if method in SAFE:
            return
        origin = headers.get("origin")
        if origin is not None and self.allows(origin):
            return
        site = headers.get("sec-fetch-site")
        if site in ("same-origin", "none"):
            return
        if site is None and origin is not None and origin == f"{client.scheme}://{headers.get('host', '').lower()}":
            return
        if origin is None and site is None:
            raise CrossSite(
                "this request changes something, and does not say which site it comes from; send a bearer token "
                f"(Authorization: Bearer hf_…), or as a browser does the header Origin: {client.scheme}://"
                f"{headers.get('host', '')}"
            )
        raise CrossSite(
            f"this request comes from {shown(origin) if origin else 'another site'}, and pages of other sites may "
            "change nothing here; send a bearer token (Authorization: Bearer hf_…), or name the site in origins= of "
            "asgi(), or with --origin of `holdfast serve`"
        )


def _listed(headers: Headers, name: str) -> list[str]:
    """Give what stands in a header, which some proxies extend, and others write once more below."""
    return [each.strip() for line in headers.getlist(name) for each in line.split(",")]


def bare_host(host: str) -> str:
    """Give a `Host` without its port, in lower case.

    >>> bare_host("Example.com:8321"), bare_host("[::1]:8321"), bare_host("evil.test:80:80")
    ('example.com', '::1', 'evil.test:80:80')
    """
    lower = host.strip().lower()
    if lower.startswith("["):
        name, bracket, rest = lower[1:].partition("]")
        return name if bracket and (not rest or (rest.startswith(":") and rest[1:].isdecimal())) else lower
    name, colon, port = lower.partition(":")
    return name.removesuffix(".") if not colon or port.isdecimal() else lower


def _check_host(host: str) -> str:
    bare = bare_host(host)
    if not bare or "/" in bare or bare != host.lower():
        raise InvalidSettings(f"hosts: {shown(host)} is not a host name; write it without scheme and port")
    return bare


def _check_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc or f"{parts.scheme}://{parts.netloc}" != origin:
        raise InvalidSettings(f"origins: {shown(origin)} is not an origin; write https://app.example.com")
    return origin.lower()


def _check_proxy(network: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(network)
    except ValueError as error:
        raise InvalidSettings(f"proxies: {error}; write an address or a network such as 10.0.0.0/8") from None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _unmapped(address: str) -> str:
    """Give an IPv4 address as such, which a socket of both kinds writes as IPv6: or all of them would be of one /64.

    >>> _unmapped("::ffff:10.0.0.7"), _unmapped("2001:db8::7")
    ('10.0.0.7', '2001:db8::7')
    """
    mapped = IPv6Address(address).ipv4_mapped if ":" in address and _is_address(address) else None
    return address if mapped is None else str(mapped)


def is_loopback(address: str) -> bool:
    """Tell whether *address* is one of this machine, which no other can reach."""
    return address == "localhost" or (_is_address(address) and ip_address(address).is_loopback)

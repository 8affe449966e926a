"""Which addresses webhooks may be sent to: tables of bad ones, when they are set and by what their names lead to."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from holdfast.errors import InvalidAddress
from holdfast.settings import Settings
from holdfast.webhooks.addresses import AddressRules, shown, take_apart, unwrapped

USUAL = AddressRules()
FOR_DEVELOPMENT = AddressRules(allows_http=True, ports=None, private=True)


@pytest.mark.parametrize(
    ("address", "host", "port", "path", "authority"),
    [
        ("https://example.com", "example.com", 443, "/", "example.com"),
        ("https://Example.COM./hooks/7?a=1&b=%20", "example.com", 443, "/hooks/7?a=1&b=%20", "example.com"),
        ("https://example.com:443/", "example.com", 443, "/", "example.com"),
        ("https://example.com:80/", "example.com", 80, "/", "example.com:80"),
        ("https://bücher.example/straße?q=ü", "xn--bcher-kva.example", 443, "/stra%C3%9Fe?q=%C3%BC", None),
        ("https://8.8.8.8/", "8.8.8.8", 443, "/", "8.8.8.8"),
        ("https://[2001:4860:4860::8888]:443/x", "2001:4860:4860::8888", 443, "/x", "[2001:4860:4860::8888]"),
        ("https://my_host.example/a//b/../c", "my_host.example", 443, "/a//b/../c", None),
    ],
)
def test_an_address_is_taken_apart(address: str, host: str, port: int, path: str, authority: str | None) -> None:
    target = USUAL.check(address)

    assert (target.scheme, target.host, target.port, target.path) == ("https", host, port, path)
    assert target.authority == (authority or host)


BAD_FORMS = [
    "",
    "example.com",
    "//example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "javascript:alert(1)",
    "https://",
    "https:///path",
    "https://:443/",
    "https://example.com:0/",
    "https://example.com:99999/",
    "https://example.com:-1/",
    "https://example.com:4 43/",
    "https://ada@example.com/",
    "https://ada:secret@example.com/",
    "https://@example.com/",
    "https://example.com\\@127.0.0.1/",
    "https://example.com/#fragment",
    "https://example.com/#",
    "https://exa mple.com/",
    "https://example.com/a b",
    "https://example.com/\r\nHost: evil",
    "https://example.com/\x00",
    "https://example..com/",
    "https://-example.com/",
    "https://example.com%00.evil/",
    "https://%31%32%37.0.0.1/",
    "https://[fe80::1%25eth0]/",
    "https://[::1/",
    "https://[example.com]/",
    "https://" + "a" * 64 + ".com/",
    "https://" + "a." * 130 + "com/",
    "https://example.com/" + "a" * 2000,
    # numbers that a resolver reads as an IPv4 address
    "https://0/",
    "https://127.1/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x/",
    "https://2130706433/",
    "https://0177.0.0.1/",
    "https://127.0.0.1.2/",
    "https://example.1/",
]


@pytest.mark.parametrize("address", BAD_FORMS)
def test_a_bad_form_is_refused_whatever_is_allowed(address: str) -> None:
    for rules in (USUAL, FOR_DEVELOPMENT):
        with pytest.raises(InvalidAddress):
            rules.check(address)


PRIVATE = [
    "https://127.0.0.1/",
    "https://127.0.0.1./",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.0.1/",
    "https://100.64.0.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[2002:7f00:1::1]/",
    "https://[fd00::1]/",
    "https://[fe80::1]/",
    "https://localhost/",
    "https://localhost./",
    "https://LOCALHOST/",
    "https://db.localhost/",
    "https://ⓛocalhost/",
    "https://loc\u00adalhost/",
    "https://\uff11\uff12\uff17.0.0.1/",
    "https://127。0。0。1/",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_leads_into_our_own_network_is_refused_unless_it_is_allowed(address: str) -> None:
    with pytest.raises(InvalidAddress, match="webhook_private_addresses"):
        USUAL.check(address)

    FOR_DEVELOPMENT.check(address)


@pytest.mark.parametrize(
    ("address", "rules", "setting"),
    [
        ("http://example.com/", {}, "webhook_http"),
        ("https://example.com:8443/", {}, "webhook_ports"),
        ("https://example.com:22/", {}, "webhook_ports"),
        ("https://example.com/", {"webhook_ports": [8443]}, "webhook_ports"),
        ("https://evil.com/", {"webhook_hosts": ["example.com", "*.example.org"]}, "webhook_hosts"),
        ("https://a.example.com/", {"webhook_hosts": ["example.com"]}, "webhook_hosts"),
        ("https://notexample.org/", {"webhook_hosts": ["*.example.org"]}, "webhook_hosts"),
        ("https://example.org/", {"webhook_hosts": ["*.example.org"]}, "webhook_hosts"),
        ("https://8.8.8.8/", {"webhook_hosts": ["example.com"]}, "webhook_hosts"),
    ],
)
def test_what_the_settings_do_not_allow_is_refused_by_the_name_of_the_setting(
    address: str, rules: dict[str, Any], setting: str
) -> None:
    with pytest.raises(InvalidAddress, match=setting):
        AddressRules.of(Settings.of(**rules)).check(address)


@pytest.mark.parametrize(
    ("address", "rules"),
    [
        ("http://example.com/", {"webhook_http": True}),
        ("https://example.com:8443/", {"webhook_ports": [443, 8443]}),
        ("https://example.com:9999/", {"webhook_ports": None}),
        ("https://EXAMPLE.com/", {"webhook_hosts": ["Example.com."]}),
        ("https://a.b.example.org/", {"webhook_hosts": ["*.example.org"]}),
        ("https://10.1.2.3/", {"webhook_private_addresses": ["10.1.0.0/16"]}),
        ("https://[::ffff:10.1.2.3]/", {"webhook_private_addresses": ["10.1.0.0/16"]}),
    ],
)
def test_what_the_settings_allow_is_allowed(address: str, rules: dict[str, Any]) -> None:
    assert AddressRules.of(Settings.of(**rules)).check(address) == take_apart(address)


PUBLIC = ["8.8.8.8", "1.1.1.1", "2001:4860:4860::8888", "2a00:1450:4001::1"]
WRAPPED = ["::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2001:0:808:808::f7f7:f7f7"]
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.255.255.255", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "100.100.100.200", "192.0.0.192", "fd00:ec2::254",
    "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.168.255.255", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::2", "100::1", "2001:db8::1", "2001:2::1", "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1",
    "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "ff00::1", "ff02::1", "ff0e::1", "4000::1", "64:ff9b:1::1",
    "::127.0.0.1", "::10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:224.0.0.1", "::ffff:0.0.0.0",
    "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::", "2002:7f00:1::1", "2002:a00:1::", "2002:e000:1::1",
    "2001:0:808:808::80ff:fffe", "2001:0:a00:1::f7f7:f7f7",
]  # fmt: skip


@pytest.mark.parametrize("address", [*PUBLIC, *WRAPPED])
def test_what_is_public_is_permitted(address: str) -> None:
    assert USUAL.permits(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_public_is_not(address: str) -> None:
    assert not USUAL.permits(ip_address(address))
    assert FOR_DEVELOPMENT.permits(ip_address(address))


def test_what_is_wrapped_is_looked_into() -> None:
    inside = {each: [str(inner) for inner in unwrapped(ip_address(each))] for each in WRAPPED}

    assert inside == {
        "::ffff:8.8.8.8": ["8.8.8.8"],
        "::8.8.8.8": ["8.8.8.8"],
        "64:ff9b::808:808": ["8.8.8.8"],
        "2002:808:808::1": ["8.8.8.8"],
        "2001:0:808:808::f7f7:f7f7": ["8.8.8.8", "8.8.8.8"],
    }


def test_a_network_that_is_allowed_allows_no_other() -> None:
    rules = AddressRules(private=(ip_network("10.1.0.0/16"), ip_network("fd00::/64")))

    allowed = ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "fd00::7", "8.8.8.8"]
    refused = ["10.2.0.1", "127.0.0.1", "fd00:0:0:1::1", "::1", "224.0.0.1", "2001:0:a01:1::80ff:fffe"]

    assert [each for each in (*allowed, *refused) if rules.permits(ip_address(each))] == allowed


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    target = take_apart("https://rebind.example/")

    with pytest.raises(InvalidAddress, match=r"leads to 127\.0\.0\.1"):
        USUAL.require([ip_address("8.8.8.8"), ip_address("127.0.0.1")], target)
    with pytest.raises(InvalidAddress, match="nowhere"):
        USUAL.require([], target)


def test_errors_show_neither_path_nor_password() -> None:
    for address in (
        "https://ada:canary@example.com/",
        "http://example.com/canary?canary",
        "https://exa\u2100:canary@b/",
    ):
        with pytest.raises(InvalidAddress) as caught:
            USUAL.check(address)
        assert "canary" not in str(caught.value)

    assert shown(take_apart("https://example.com:8443/canary?canary=1")) == "https://example.com:8443/…"

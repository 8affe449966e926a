"""The HTTP API in a Django project: its users by their permissions, its hosts, under WSGI and under ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.backends.signed_cookies import SessionStore as SignedSession
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient, Client, RequestFactory, override_settings

from holdfast import Holdfast
from holdfast.http import Identity, Role
from holdfast.http.django import _APPS, _Login, serve
from holdfast.http.sse import LiveStreams
from tests.integrations.django_site import greet, on_sqlite
from tests.support.conditions import until
from tests.support.databases import django_project
from tests.support.sse_reader import Reader

JOBS = "/jobs/api/jobs"
WHY = {"why": "no stock"}
OWN_PAGE = {"Origin": "http://testserver"}


def user(*permissions: str, **facts: Any) -> Client:
    """Give a client of a user with these permissions, who is logged in."""
    made = User.objects.create_user("ada", **facts)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(made)
    return client


@pytest.mark.parametrize(
    ("permissions", "facts", "role", "tenant"),
    [
        ((), {"is_staff": True}, "viewer", None),
        (("operate",), {}, "operator", None),
        (("administer",), {"is_staff": True}, "admin", None),
        ((), {"is_superuser": True}, "admin", "*"),
    ],
    ids=["staff", "operate", "administer", "superuser"],
)
@on_sqlite
def test_users_have_the_role_of_their_permissions(
    site: Holdfast, permissions: tuple[str, ...], facts: dict[str, Any], role: str, tenant: str | None
) -> None:
    who = user(*permissions, **facts).get("/jobs/api").json()["who"]

    assert (who["name"], who["role"], who["tenant"]) == ("ada", role, tenant)


@pytest.mark.parametrize(
    ("permissions", "facts"),
    [((), {}), (("view_job",), {}), (("operate",), {"is_active": False}), ((), {"is_staff": True, "is_active": False})],
    ids=["customer", "may view in the admin", "inactive operator", "inactive staff"],
)
@on_sqlite
def test_other_users_are_strangers(site: Holdfast, permissions: tuple[str, ...], facts: dict[str, Any]) -> None:
    answer = user(*permissions, **facts).get(JOBS)

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_what_an_operator_does_stands_in_the_audit_under_their_name(site: Holdfast) -> None:
    job = site.sync.start(greet(name="Ada")).id

    answer = user("operate").post(f"{JOBS}/{job}/cancel", WHY, content_type="application/json", headers=OWN_PAGE)

    assert (answer.status_code, site.sync.get_job(job).status) == (200, "cancelled")
    (entry,) = site.sync.audit()
    assert (entry.who, entry.action, entry.subject, entry.why) == ("ada", "cancel", str(job), "no stock")


@pytest.mark.parametrize("origin", [{}, {"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "same-site"}])
@on_sqlite
def test_a_page_of_another_site_changes_nothing(site: Holdfast, origin: dict[str, str]) -> None:
    job = site.sync.start(greet(name="Ada")).id

    answer = user("operate").post(f"{JOBS}/{job}/cancel", WHY, content_type="application/json", headers=origin)

    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
    assert site.sync.get_job(job).status == "pending"


def test_a_program_brings_a_token_and_needs_no_login(site: Holdfast) -> None:
    job = site.sync.start(greet(name="Ada")).id
    headers = {"Authorization": f"Bearer {site.sync.tokens.create('deploy', role='operator').token}"}
    client = Client(enforce_csrf_checks=True)

    answer = client.post(f"{JOBS}/{job}/cancel", WHY, content_type="application/json", headers=headers)

    assert answer.status_code == 200


@on_sqlite
def test_a_host_that_django_does_not_serve_is_refused_by_django(site: Holdfast) -> None:
    answer = user(is_staff=True).get(JOBS, headers={"host": "evil.test"})

    assert (answer.status_code, answer.headers["Content-Type"]) == (400, "text/html; charset=utf-8")


@on_sqlite
def test_it_is_served_at_every_path_that_it_is_mounted_at_and_nowhere_else(site: Holdfast) -> None:
    client = user(is_staff=True)

    assert client.get("/much/deeper/jobs/api").json()["who"]["name"] == "ada"
    assert client.get("/jobsx/api").headers["Content-Type"].startswith("text/html")
    assert client.get("/jobs//api").json()["code"] == "no_such_route"
    assert client.get("/jobs/").json()["code"] == "no_such_route"
    assert client.get("/jobs/%ff/api").json()["code"] == "no_such_route"


@on_sqlite
def test_a_body_that_a_middleware_has_read_is_there_all_the_same(site: Holdfast) -> None:
    job = site.sync.start(greet(name="Ada")).id
    token = site.sync.tokens.create("deploy", role="operator").token
    request = RequestFactory().post(
        f"{JOBS}/{job}/cancel", WHY, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
    )
    assert request.body

    serve(request, f"api/jobs/{job}/cancel")

    assert [each.why for each in site.sync.audit() if each.action == "cancel"] == ["no stock"]


@on_sqlite
def test_under_wsgi_there_is_no_stream_but_pages(site: Holdfast) -> None:
    client = user(is_staff=True)

    assert client.get("/jobs/api/events").json()["code"] == "no_stream"
    page = client.get("/jobs/api/events.json").json()
    site.sync.start(greet(name="Ada"))
    later = client.get("/jobs/api/events.json", {"after": page["cursor"]}).json()
    assert [each["event"] for each in later["items"]] == ["job:enqueued"]


@pytest.fixture
async def async_site(site: Holdfast) -> AsyncIterator[Holdfast]:
    """A project whose views Django calls in a thread beside the loop; that has a connection of its own."""
    yield site
    await site.close()
    await sync_to_async(django_project.drop)("default")


async def test_under_asgi_a_stream_brings_what_happens(async_site: Holdfast) -> None:
    site = async_site
    token = (await site.tokens.create("ada", role="viewer")).token
    headers = {"Authorization": f"Bearer {token}"}
    response: Any = await AsyncClient().get("/jobs/api/events", {"snapshot": "false"}, headers=headers)
    assert response.status_code == 200, response.content
    pieces, reader = aiter(response.streaming_content), Reader()
    reader.feed(await anext(pieces))

    chain = await site.start(greet(name="Ada"))

    while not (messages := reader.feed(await anext(pieces))):
        pass
    assert messages[0].event == "job:enqueued"
    assert str(chain.id) in str(messages[0].data)
    assert len(streams()) == 1
    await pieces.aclose()
    await sync_to_async(response.close)()  # as Django does in every case
    await until(lambda: len(streams()) == 0, "the stream has ended")


async def test_under_asgi_a_stream_that_nobody_reads_ends_with_its_response(async_site: Holdfast) -> None:
    token = (await async_site.tokens.create("ada", role="viewer")).token
    response: Any = await AsyncClient().get("/jobs/api/events", headers={"Authorization": f"Bearer {token}"})
    assert len(streams()) == 1

    await sync_to_async(response.close)()

    await until(lambda: len(streams()) == 0, "the stream has ended")


def streams() -> LiveStreams:
    """Give the open streams of the project."""
    return _APPS[True][2].service.live


async def test_under_asgi_an_act_is_done_as_under_wsgi(async_site: Holdfast) -> None:
    site = async_site
    token = (await site.tokens.create("deploy", role="operator")).token
    headers = {"Authorization": f"Bearer {token}"}
    job = (await site.start(greet(name="Ada"))).id

    answer = await AsyncClient().post(f"{JOBS}/{job}/cancel", WHY, content_type="application/json", headers=headers)

    assert answer.status_code == 200, answer.content
    assert [each.why for each in await site.audit() if each.action == "cancel"] == ["no stock"]


@pytest.mark.parametrize("change", ["nothing", "log out", "deactivate", "take away", "new password", "delete"])
@on_sqlite
async def test_a_stream_asks_again_whether_its_user_may_still_read(site: Holdfast, change: str) -> None:
    client = user("operate")
    made = User.objects.get()
    request = RequestFactory().get("/jobs/api/events")
    request.user, request.session = made, client.session
    login = _Login(request)
    assert await login.look() == Identity("ada", Role.OPERATOR)

    _change(client, change)

    assert await login.look() == (Identity("ada", Role.OPERATOR) if change == "nothing" else None)


def _change(client: Client, change: str) -> None:
    made = User.objects.get()
    if change == "log out":
        client.logout()
    elif change == "deactivate":
        User.objects.update(is_active=False)
    elif change == "take away":
        made.user_permissions.clear()
    elif change == "new password":
        made.set_password("another")
        made.save()
    elif change == "delete":
        made.delete()


@on_sqlite
def test_settings_give_keywords_for_the_api(site: Holdfast) -> None:
    job = site.sync.start(greet(name="Ada")).id
    client, origin = user("operate"), {"Origin": "https://app.example.com"}

    with override_settings(HOLDFAST={"http": {"origins": ["https://app.example.com"]}}):
        answer = client.post(f"{JOBS}/{job}/cancel", WHY, content_type="application/json", headers=origin)

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("options", "said"), [({"hosts": ["*"]}, "has 'hosts'; it takes keywords of"), (["x"], "must be a dictionary")]
)
@on_sqlite
def test_what_settings_may_not_give_is_said(site: Holdfast, options: object, said: str) -> None:
    with override_settings(HOLDFAST={"http": options}), pytest.raises(ImproperlyConfigured, match=said):
        Client().get("/jobs/api")


@on_sqlite
def test_where_every_page_wants_a_login_the_api_says_so_itself_and_takes_tokens(site: Holdfast) -> None:
    headers = {"Authorization": f"Bearer {site.sync.tokens.create('deploy').token}"}
    required = "django.contrib.auth.middleware.LoginRequiredMiddleware"

    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, required]):
        codes = [Client().get("/jobs/api").status_code, Client().get("/jobs/api", headers=headers).status_code]

    assert codes == [401, 200]


async def test_what_is_sent_in_pieces_is_the_same_under_both(async_site: Holdfast) -> None:
    headers = {"Authorization": f"Bearer {(await async_site.tokens.create('ada')).token}"}
    await async_site.start_many([greet(name=f"Ada {number}") for number in range(50)])

    response: Any = await AsyncClient().get("/jobs/api/jobs.csv", headers=headers)
    pieces = b"".join([piece async for piece in response.streaming_content])
    whole = await sync_to_async(Client().get)("/jobs/api/jobs.csv", headers=headers)

    assert (response.status_code, whole.status_code) == (200, 200)
    assert (pieces, pieces.count(b"\n")) == (whole.content, 51)
    assert response.headers["Content-Type"] == whole.headers["Content-Type"]
    await sync_to_async(response.close)()


@on_sqlite
async def test_a_session_that_only_the_browser_has_ends_no_stream(site: Holdfast) -> None:
    user("operate")
    request = RequestFactory().get("/jobs/api/events")
    request.user, request.session = User.objects.get(), SignedSession("signed")
    login = _Login(request)

    assert await login.look() == await login.look() == Identity("ada", Role.OPERATOR)


@on_sqlite
def test_a_bearer_token_that_is_not_ours_is_left_to_django(site: Holdfast) -> None:
    answer = user("operate").get("/jobs/api", headers={"Authorization": "Bearer of.another.kind"})

    assert answer.json()["who"]["name"] == "ada"

"""Jobs in Django's admin: found, shown, and not changed."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from holdfast import Holdfast
from holdfast.integrations.django.admin import MOST_COUNTED
from holdfast.integrations.django.models import Job
from tests.integrations.django_site import greet, on_postgres

LIST = "/admin/holdfast/job/"


@pytest.fixture
def admin(site: Holdfast) -> Client:
    """Somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    return client


def page_of(job_id: UUID) -> str:
    return f"{LIST}{job_id}/change/"


def listed(client: Client, **query: str) -> list[str]:
    """Give the ids of the jobs on the list's first page."""
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [job.id for job in answer.context_data["cl"].result_list]


def test_the_list_has_the_newest_first_and_none_that_are_deleted(site: Holdfast, admin: Client) -> None:
    first, second, gone, kept = (site.sync.start(greet(name=name)) for name in ("Ada", "Bob", "Cid", "Dan"))
    site.sync.delete(gone)
    site.store.run_sync(_mark_deleted, str(kept.id))  # Holdfast's own lists leave these out

    assert listed(admin) == [str(second.id), str(first.id)]


def test_the_list_can_be_narrowed_by_status_task_and_queue(site: Holdfast, admin: Client) -> None:
    kept = site.sync.start(greet(name="Ada"))
    site.sync.cancel(site.sync.start(greet(name="Bob")))
    other = site.sync.start(greet(name="Cid"), queue="other")

    assert listed(admin, status__exact="pending", queue="mail") == [str(kept.id)]
    assert listed(admin, queue="other") == [str(other.id)]
    assert len(listed(admin, task="greet")) == 3
    assert listed(admin, task="unknown") == []


def test_the_filters_offer_what_tasks_say_of_themselves(site: Holdfast, admin: Client) -> None:
    site.sync.open()

    text = admin.get(LIST).content.decode()

    assert "?task=greet" in text
    assert "?queue=mail" in text


def test_a_job_is_found_by_its_id_or_that_of_its_chain(site: Holdfast, admin: Client) -> None:
    wanted, _ = site.sync.start(greet(name="Ada")), site.sync.start(greet(name="Bob"))
    with site.sync.completing(greet, wanted) as job:
        following = job.continue_with(greet(name="next"))

    assert listed(admin, q=str(following.id)) == [str(following.id)]
    assert listed(admin, q=f" {str(wanted.id).upper()} ") == [str(following.id), str(wanted.id)]
    assert listed(admin, q=str(uuid4())) == []
    assert listed(admin, q="' OR 1=1") == []


def test_a_page_shows_input_output_and_what_happened(site: Holdfast, admin: Client) -> None:
    chain = site.sync.start(greet(name="<Ada> & ü"))
    site.sync.complete(greet, chain, "Hello", by="bob")

    text = admin.get(page_of(chain.id)).content.decode()

    assert "&quot;name&quot;: &quot;&lt;Ada&gt; &amp; ü&quot;" in text
    assert "<pre>&quot;Hello&quot;</pre>" in text
    assert text.index("job:enqueued") < text.index("job:completed")


def test_a_page_shows_the_error_of_a_job_that_failed(site: Holdfast, admin: Client) -> None:
    chain = site.sync.start(greet(name="Ada"))
    site.store.run_sync(_fail, str(chain.id))

    assert "ValueError" in admin.get(page_of(chain.id)).content.decode()


async def _mark_deleted(tx: Any, job_id: str) -> None:
    await tx.execute("UPDATE holdfast_job SET closed_as = 'deleted', closed_at = $now WHERE id = :id", id=job_id)


async def _fail(tx: Any, job_id: str) -> None:
    error = json.dumps({"type": "ValueError"})
    await tx.execute("UPDATE holdfast_job SET error = :error WHERE id = :id", error=error, id=job_id)


@pytest.mark.parametrize(("address", "status"), [("add/", 403), ("{id}/delete/", 403), ("{id}/history/", 200)])
def test_nothing_can_be_added_or_deleted(site: Holdfast, admin: Client, address: str, status: int) -> None:
    chain = site.sync.start(greet(name="Ada"))

    assert admin.get(LIST + address.format(id=chain.id)).status_code == status


def test_nothing_can_be_changed(site: Holdfast, admin: Client) -> None:
    chain = site.sync.start(greet(name="Ada"))

    assert admin.post(page_of(chain.id), {"status": "completed"}).status_code == 403

    assert site.sync.get_job(chain).status == "pending"
    assert "_save" not in admin.get(page_of(chain.id)).content.decode()


def test_a_list_has_no_actions(site: Holdfast, admin: Client) -> None:
    chain = site.sync.start(greet(name="Ada"))
    admin.post(LIST, {"action": "delete_selected", "_selected_action": str(chain.id), "post": "yes"})

    assert site.sync.get_job(chain).status == "pending"


@pytest.mark.parametrize(("codename", "status"), [("view_job", 200), ("view_group", 403)])
def test_it_is_for_those_who_may_view_jobs(site: Holdfast, codename: str, status: int) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename=codename))
    client = Client()
    client.force_login(clerk)

    assert client.get(LIST).status_code == status


def test_there_is_no_permission_but_to_view_and_those_of_the_http_api(site: Holdfast) -> None:
    found = Permission.objects.filter(content_type__app_label="holdfast")

    assert sorted(each.codename for each in found) == ["administer", "operate", "view_job"]


@on_postgres
def test_the_list_counts_only_so_far(site: Holdfast, admin: Client) -> None:
    site.sync.start(greet(name="Ada"))

    with CaptureQueriesContext(connections["default"]) as sent:
        admin.get(LIST)

    counts = [each["sql"] for each in sent if "COUNT(" in each["sql"] and "holdfast_job" in each["sql"]]
    assert counts
    assert all(f"LIMIT {MOST_COUNTED}" in each for each in counts)


def test_models_can_be_asked_by_the_users_own_queries(site: Holdfast) -> None:
    chain = site.sync.start(greet(name="Ada"))

    assert str(Job.objects.get(id=chain.id)) == f"greet {chain.id}"

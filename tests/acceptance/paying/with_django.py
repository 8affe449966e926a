"""Django's models, in plain handlers, on either database."""

from __future__ import annotations

import django
from django.conf import settings
from django.db import models
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast
from holdfast.integrations.django import Django
from holdfast.sync import Context
from tests.acceptance.paying.runtime import TASK, database


def entry(address: str) -> dict[str, object]:
    """Write an address as Django has it."""
    if not address.startswith("postgresql"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": address}
    given = conninfo_to_dict(address)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {"ENGINE": "django.db.backends.postgresql", **{key: given.get(name, "") for key, name in names.items()}}


settings.configure(DATABASES={"default": entry(database())}, USE_TZ=True)
django.setup()


class Order(models.Model):  # type: ignore[misc]
    """An order of the shop."""

    number = models.IntegerField(primary_key=True)
    amount = models.IntegerField()
    times_paid = models.IntegerField()
    receipts = models.IntegerField()

    class Meta:
        """It has no app: its table is made by the test."""

        app_label = "paying"
        db_table = "shop_order"
        managed = False


hf = Holdfast(transactions=Django("default"))
task = hf.tasks.task(**TASK)


@task(name="pay")
def pay(ctx: Context, number: int) -> int:
    """Pay an order, and leave its receipt to the next job."""
    with ctx.prepare():
        amount = Order.objects.get(number=number).amount
    ctx.progress(50, flush=True)
    with ctx.complete() as tx:
        order = Order.objects.get(number=number)
        order.times_paid += 1
        ctx.progress(90)  # the block holds the job's row, so that its end writes this
        order.save()
        return tx.continue_with(write_receipt(number=number, amount=amount))


@task(name="write_receipt")
def write_receipt(ctx: Context, number: int, amount: int) -> int:
    """Write down that an order was paid."""
    with ctx.complete() as tx:
        order = Order.objects.get(number=number)
        order.receipts += 1
        order.save()
        return tx.finish(amount)

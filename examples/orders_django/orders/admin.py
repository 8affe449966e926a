"""Orders in the admin, beside the jobs."""

from __future__ import annotations

from django.contrib import admin

from examples.orders_django.orders.models import Order

admin.site.register(Order)

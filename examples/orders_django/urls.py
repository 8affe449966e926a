"""Where the shop's pages are."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from examples.orders_django.orders import views

urlpatterns = [
    path("orders", views.take_order),
    path("orders/<int:order_id>", views.show_order),
    path("admin/", admin.site.urls),
    path("jobs/", include("holdfast.integrations.django.urls")),  # the HTTP API, for staff and operators
]

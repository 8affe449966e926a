"""The addresses of the Django project that tests use."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("jobs/", include("holdfast.integrations.django.urls")),
    path("much/deeper/jobs/", include("holdfast.integrations.django.urls")),
]

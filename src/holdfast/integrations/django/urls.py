"""Where the HTTP API is: `path("jobs/", include("holdfast.integrations.django.urls"))` serves `/jobs/api/jobs`."""

from __future__ import annotations

from django.urls import path
from django.utils.module_loading import import_string

# by its name: a project that serves no API does without Starlette, and the http room lies above this one
serve = import_string("holdfast.http.django.serve")

urlpatterns = [path("", serve), path("<path:rest>", serve)]

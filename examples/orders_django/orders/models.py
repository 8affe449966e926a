"""The shop's own table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What somebody wants to have."""

    item = models.TextField()
    cents = models.IntegerField()
    state = models.TextField(default="new")

    def __str__(self) -> str:
        return f"{self.item}, {self.state}"

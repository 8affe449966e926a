"""The shop's pages: with ATOMIC_REQUESTS, an order and its job are one commit."""

from __future__ import annotations

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from examples.orders_django.orders.models import Order
from examples.orders_django.orders.tasks import charge
from holdfast.integrations.django import holdfast


@csrf_exempt
@require_POST
def take_order(request: HttpRequest) -> JsonResponse:
    """Write an order down, and start the job that charges it."""
    wanted = json.loads(request.body)
    order = Order.objects.create(item=wanted["item"], cents=wanted["cents"])
    chain = holdfast().sync.start(charge(order_id=order.id), connection="default")
    if order.item == "teapot":
        transaction.set_rollback(True)  # neither order nor job
        return JsonResponse({"error": "out of stock"}, status=409)
    return JsonResponse({"order_id": order.id, "job_id": str(chain.id)}, status=201)


@require_GET
def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    """Tell how an order stands."""
    order = get_object_or_404(Order, id=order_id)
    return JsonResponse({"item": order.item, "state": order.state})

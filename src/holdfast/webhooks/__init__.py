"""Webhooks as senders and receivers use them alone: signatures here need nothing but Python, posting the extra."""

from holdfast.webhooks.signing import new_secret, sign, verify_webhook

__all__ = ["new_secret", "sign", "verify_webhook"]

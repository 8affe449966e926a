"""Everybody's transactions: how each library begins one, and how its users insert a row in it by hand."""

from bench.stacks.kinds import AnyStack, AsyncMeans, AsyncStack, Means, Stack
from bench.stacks.known import STACKS

__all__ = ["STACKS", "AnyStack", "AsyncMeans", "AsyncStack", "Means", "Stack"]

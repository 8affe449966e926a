"""Holdfast beside other libraries: one module for each, which imports its library; nothing else here does."""

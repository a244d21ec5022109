"""Losses for networks that are to be certified. There are none yet."""

__all__: list[str] = []

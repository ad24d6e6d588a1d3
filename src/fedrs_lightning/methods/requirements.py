"""What methods require of their options and of the task. A `ConfigError` of one line says what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedrs_lightning.errors import ConfigError

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task


def require_not_negative(hint: str = "", **options: float | None) -> None:
    """Refuse numbers below 0, infinity and nan; null is left alone. The message ends with the hint."""
    _require(lambda value: 0 <= value < float("inf"), "is not a number of at least 0", hint, options)


def require_positive(hint: str = "", **options: float | None) -> None:
    """As `require_not_negative`, and refuse 0."""
    _require(lambda value: 0 < value < float("inf"), "is not a positive number", hint, options)


def require_at_least_one(hint: str = "", **options: int | None) -> None:
    """As `require_not_negative`, for counts, which begin at 1."""
    _require(lambda value: value >= 1, "is below 1", hint, options)


def _require(fits: Any, complaint: str, hint: str, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and not fits(value):
            raise ConfigError(f"{name}: {value} {complaint}" + (f"; {hint}" if hint else ""))


def num_classes(task: Task, method: str) -> int:
    """Number of classes of a task; refuse one that has none, or several classes a sample, of which none is "its"."""
    name = type(task).__name__
    if task.label_kind == "several_classes":
        several = f"{name} has several labels each"
        raise ConfigError(f"{method} needs one class per sample, and {several}; choose another method")
    count = getattr(task, "num_classes", None)
    if count is None:
        raise ConfigError(f"{method} needs a task with classes; {name} has no num_classes")
    return int(count)

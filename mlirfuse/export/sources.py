"""What is exported, as graphs for sizes: functions that are traced, and nvFuser's definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirfuse.core.errors import MlirfuseError, UnsupportedError
from mlirfuse.export.definition_source import Definition
from mlirfuse.export.function_source import Function
from mlirfuse.export.paths import Failed, Point
from mlirfuse.export.specialization import ExportSpecialization
from mlirfuse.frontend.numpy.jit import Jitted
from mlirfuse.frontend.nvfuser.definition import FusionDefinition
from mlirfuse.schedule.targets import Target


def source_of(
    f: Any, specs: Sequence[Any], keywords: dict[str, Any], target: Target, name: str
) -> Function | Definition:
    """What is exported, for one target. Raises TypeError for what is no function."""
    if isinstance(f, FusionDefinition):
        if keywords:
            raise TypeError("a definition's inputs have no names: give them in order")
        return Definition(f, specs, target)
    if not isinstance(f, Jitted):
        if not callable(f):
            raise TypeError(f"mlirfuse.export takes a function or a FusionDefinition, and not {f!r}")
        f = Jitted(f)
    return Function(f, specs, keywords, target, name)


def specialization_at(source: Function | Definition, point: Point) -> ExportSpecialization:
    """The program for a point. Raises :class:`Failed` from the error where there is none for these sizes."""
    try:
        return source.specialization(point)
    except UnsupportedError:
        raise  # whatever the sizes
    except (MlirfuseError, ValueError, TypeError, IndexError) as error:
        raise Failed(str(error)) from error

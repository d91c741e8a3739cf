"""What the user looks into: the public face of hooks."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tintformer.execution.hook_points import HookPoint, When
from tintformer.execution.hooks import Function, Hooks, Seen


class Watchable:
    """Something that runs passes which can be watched."""

    @property
    def hooks(self) -> Hooks:
        """The hooks of its passes."""
        raise NotImplementedError

    def points(self) -> list[HookPoint]:
        """Every point of a pass where a hook may stand, as `(when, name)`, in order.

        Those of the pass `before` learning are met only where `before=True` asks for it.
        """
        return self.hooks.points()

    def watch(self, *patterns: str, when: When | None = None) -> AbstractContextManager[Seen]:
        """Keep the values at every point whose name fits a pattern: `with model.watch("blocks.*.down.output") as seen`.

        They are found by pass and name, `seen["after", "blocks.3.down.output"]`. `when` restricts the pass. A later
        call inside of the context replaces what an earlier one left.
        """
        return self.hooks.watch(*patterns, when=when)

    def hook(self, pattern: str, function: Function, *, when: When | None = None) -> AbstractContextManager[None]:
        """Call `function(value, point)` at every point whose name fits the pattern; what it returns replaces the value.

        It may return None to leave the value alone, and must not change it in place. Several hooks at one point are
        called in the order in which they were set, each with the answer of the one before.
        """
        return self.hooks.hook(pattern, function, when=when)

"""YAML that somebody else wrote: plain values alone, bounded in size, in depth and in what its aliases stand for.

A few lines of YAML can stand for more than memory holds: an alias repeats what its anchor marks, and aliases nest.
"""

from __future__ import annotations

from typing import Any

from tintformer.errors import InputError, brief, cause

MAX_YAML = 2**20
"""Bytes. A description with all its prompts has a thousand."""
MAX_NODES = 10_000
"""Keys and values, with aliases written out."""
MAX_DEPTH = 32


def parse_foreign_yaml(data: bytes, where: str) -> Any:
    """YAML as plain Python values; whatever is wrong with it is an `InputError` of one line."""
    import yaml

    if len(data) > MAX_YAML:
        raise InputError(f"{where} has {len(data)} bytes, and at most {MAX_YAML} are read; give the right file")
    try:
        return yaml.load(data.decode("utf-8-sig"), _loader())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where} line {line}: byte {data[error.start]:#04x} is no UTF-8; save it so") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where} line {mark.line + 1}" if mark is not None else where
        reason = cause(Exception(getattr(error, "problem", None) or error))
        raise InputError(f"{place}: this is no YAML ({reason})") from error
    except (
        Exception
    ) as error:  # a date such as 2024-13-45, a number of too many digits, `!!int x`: anything of Python's
        raise InputError(f"{where}: a value is not what it says it is ({cause(error)}); put it in quotes") from error


def _loader() -> Any:
    """A `SafeLoader`, which makes no objects but plain ones, that counts what it reads."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any):
            super().__init__(stream)
            self.nodes = self.depth = 0
            self.sizes: dict[int, int] = {}
            """By the id of a node, how many there are in it, aliases written out."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event, before = self.peek_event(), self.nodes
            self.depth += 1
            node: Any = super().compose_node(parent, index)
            self.depth -= 1
            if isinstance(event, yaml.AliasEvent):
                if id(node) not in self.sizes:
                    raise _fault("an alias stands inside of what it repeats", event)
                self.nodes += self.sizes[id(node)]
            else:
                self.nodes += 1
                self.sizes[id(node)] = self.nodes - before
            if self.nodes > MAX_NODES:
                raise _fault(f"there are more than {MAX_NODES} keys and values, aliases written out", event)
            return node

        def compose_scalar_node(self, anchor: Any) -> Any:
            node: Any = super().compose_scalar_node(anchor)
            try:
                node.value.encode()
            except UnicodeEncodeError:
                raise _fault(f"{brief(node.value)} holds half a character", node) from None
            return node

        def compose_sequence_node(self, anchor: Any) -> Any:
            self.check_depth()
            return super().compose_sequence_node(anchor)

        def compose_mapping_node(self, anchor: Any) -> Any:
            self.check_depth()
            node: Any = super().compose_mapping_node(anchor)
            # YAML itself lets the last of two equal keys win without a word. Here, before merged keys are put in.
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and (key.tag, key.value) in seen:
                    raise _fault(f"the key {brief(key.value)} is there twice", key)
                seen.add((key.tag, str(key.value) if isinstance(key.value, str) else ""))
            return node

        def check_depth(self) -> None:
            if self.depth > MAX_DEPTH:
                raise _fault(f"it is nested more than {MAX_DEPTH} deep", self.peek_event())

    def _fault(problem: str, at: Any) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)

    return Loader

"""Regular expressions of the configuration, matched in bounded time on text that others choose.

The engine is the regex crate of Rust (https://docs.rs/regex), which pydantic contains. It searches
in O(m·n) for a pattern of size m and a text of n bytes, and refuses patterns whose compiled form
exceeds 10 MiB. It does not backtrack, so there are no look-around assertions and no backreferences.
"""

from __future__ import annotations

from typing import Final

MAX_TEXT_BYTES: Final = 16384
"""Start of a text that is searched; the rest is not read."""


class LinearPattern:
    """A compiled pattern; ``search`` returns whether it matches anywhere in a text."""

    def __init__(self, pattern: str) -> None:
        """Compile. Raises ``ValueError`` with the engine's reason, in one line."""
        # Imported here: takes 60 ms, and most commands have no patterns.
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        try:
            self._matches = SchemaValidator(schema).isinstance_python
        except SchemaError as error:
            raise ValueError(_reason(str(error))) from None
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"LinearPattern({self.pattern!r})"

    def search(self, text: bytes) -> bool:
        """Return whether the pattern matches in the first ``MAX_TEXT_BYTES`` of a text.

        Bytes that are not UTF-8 count as U+FFFD.
        """
        return self._matches(text[:MAX_TEXT_BYTES].decode("utf-8", "replace"))


def _reason(text: str) -> str:
    """Return the engine's reason from a SchemaError, whose last line has it."""
    last = text.splitlines()[-1].strip()
    return last.rpartition("error: ")[2].removeprefix("SchemaError: ").rstrip(".")

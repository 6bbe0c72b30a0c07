"""JSON from elsewhere: files and arguments that may be damaged or made to do harm.

Of such text ``json.loads`` raises more than ``JSONDecodeError``: ``RecursionError`` where it is
nested too deeply, and a ``ValueError`` about Python's own limits where a number is too long.
"""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; JSONDecodeError or another ValueError for any other text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError:
        raise ValueError("a number of the JSON has too many digits") from None

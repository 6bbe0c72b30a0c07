# The native module is typed by its declarations (timing/timing.cdef), which mypy cannot read.
from typing import Any

ffi: Any
lib: Any

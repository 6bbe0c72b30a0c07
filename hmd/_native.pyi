# The native module is typed by its declarations (native/*.cdef), which mypy cannot read.
from typing import Any

ffi: Any
lib: Any

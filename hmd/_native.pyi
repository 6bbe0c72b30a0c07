# SPDX-License-Identifier: MIT
# cffi types the native module by its headers (native/*.h), which mypy cannot read.
from typing import Any

ffi: Any
lib: Any

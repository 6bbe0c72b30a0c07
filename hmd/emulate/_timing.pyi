# SPDX-License-Identifier: MIT
# cffi types the native module by its header (timing/timing.h), which mypy cannot read.
from typing import Any

ffi: Any
lib: Any

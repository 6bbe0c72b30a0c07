"""The lock of the status socket."""

from pathlib import Path

import pytest

from hmd.daemon.instance_lock import InstanceLock
from hmd.errors import HmdError


def test_instance_lock_of_root_folder_refused() -> None:
    with pytest.raises(HmdError, match="is a folder: set observe"):
        InstanceLock(Path("/"))

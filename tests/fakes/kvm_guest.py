# SPDX-License-Identifier: MIT
"""A real virtual machine of KVM, in a process of its own, whose CPU is mapped and does not run.

    kvm_guest.py      prints a line once its CPU is there

ioctls: Documentation/virt/kvm/api.rst, linux/kvm.h.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path

KVM = Path("/dev/kvm")
_CREATE_VM, _MMAP_SIZE, _CREATE_VCPU = 0xAE01, 0xAE04, 0xAE41


def usable() -> bool:
    """Whether this process may make virtual machines."""
    try:
        kvm = os.open(KVM, os.O_RDWR)
    except OSError:
        return False
    try:
        os.close(fcntl.ioctl(kvm, _CREATE_VM, 0))
    except OSError:
        return False
    finally:
        os.close(kvm)
    return True


def main() -> None:
    """Wait until killed."""
    kvm = os.open(KVM, os.O_RDWR)
    cpu = fcntl.ioctl(fcntl.ioctl(kvm, _CREATE_VM, 0), _CREATE_VCPU, 0)
    state = mmap.mmap(cpu, fcntl.ioctl(kvm, _MMAP_SIZE, 0))
    print(len(state), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()

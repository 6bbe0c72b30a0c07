/* SPDX-License-Identifier: MIT */
/* The boot of the guest: modules, the port to the launcher, file systems. */
#ifndef HMD_GUEST_BOOT_H
#define HMD_GUEST_BOOT_H

#define MAX_WORDS 4096

/*
 * Load the kernel modules, open the port, mount all file systems and enter the new root. The words
 * of the command that the initramfs names as first process go to `successor`, NULL at the end; it
 * has none where the initramfs names none.
 */
void boot(char *successor[MAX_WORDS]);

#endif

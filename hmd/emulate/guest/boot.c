/* SPDX-License-Identifier: MIT */
/* The boot of the guest: modules, the port to the launcher, file systems. */
#define _GNU_SOURCE
#include "boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frames.h"

static void mount_at(const char *source, const char *target, const char *type,
		     unsigned long flags, const char *options)
{
	mkdir(target, 0755);
	if (mount(source, target, type, flags, options))
		fail("mount %s at %s", type, target);
}

static void load_modules(void)
{
	struct dirent **names;
	int count = scandir("/modules", &names, NULL, alphasort); /* in order of dependency */

	for (int i = 0; i < count; i++) {
		char path[512];
		if (names[i]->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/modules/%s", names[i]->d_name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
			fail("load %s", path);
		close(fd);
	}
}

/* devtmpfs names ports vportNpM; their given names are in sysfs. */
static int open_port(void)
{
	DIR *folder = opendir("/sys/class/virtio-ports");
	struct dirent *entry;
	int fd = -1;

	while (folder && (entry = readdir(folder))) {
		char path[512], name[32] = "";
		snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
		int file = open(path, O_RDONLY | O_CLOEXEC);
		if (file < 0)
			continue;
		ssize_t length = read(file, name, sizeof name - 1);
		close(file);
		if (length < 9 || strncmp(name, "hmd.agent", 9))
			continue;
		snprintf(path, sizeof path, "/dev/%s", entry->d_name);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (folder)
		closedir(folder);
	return fd;
}

static void wait_for_port(void)
{
	/* The console driver announces its ports from a work queue, some time after boot. */
	for (int tries = 0; port < 0 && tries < 3000; tries++) {
		port = open_port();
		if (port < 0)
			usleep(10000);
	}
	if (port < 0)
		fail("no virtio port hmd.agent");
	for (int tries = 0; tries < 3000; tries++) {
		struct pollfd poller = { port, POLLOUT, 0 };
		poll(&poller, 1, 10);
		if (!(poller.revents & POLLHUP))
			return;
		usleep(10000);
	}
}

/* A share may lie below what is empty in the guest: /run. */
static void make_folders(char *path)
{
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(path, 0755);
		*slash = '/';
	}
	mkdir(path, 0755);
}

/* Each line of /shares: a 9p tag, a space, the directory that it is on the host. */
static void mount_shares(void)
{
	FILE *shares = fopen("/shares", "re");
	char line[4200], target[4200];

	while (shares && fgets(line, sizeof line, shares)) {
		line[strcspn(line, "\n")] = 0;
		char *path = strchr(line, ' ');
		if (!path)
			continue;
		*path++ = 0;
		snprintf(target, sizeof target, "/new%s", path);
		make_folders(target);
		/* cache=mmap: mappings may be written, yet nothing written lingers unseen. */
		if (mount(line, target, "9p", 0,
			  "trans=virtio,version=9p2000.L,msize=512000,cache=mmap"))
			fail("mount the share %s", path);
	}
	if (shares)
		fclose(shares);
}

/* Each line of /first is a word of its command. */
static void read_successor(char *successor[MAX_WORDS])
{
	FILE *words = fopen("/first", "re");
	size_t room = 0;

	for (int i = 0; words && i < MAX_WORDS - 1; i++) {
		if (getline(&successor[i], &room, words) <= 0) {
			successor[i] = NULL;
			break;
		}
		successor[i][strcspn(successor[i], "\n")] = 0;
		room = 0;
	}
	if (words)
		fclose(words);
}

static void mount_root(void)
{
	mount_at("hmd_root", "/lower", "9p", MS_RDONLY,
		 "trans=virtio,version=9p2000.L,msize=512000,cache=loose");
	mount_at("tmpfs", "/changes", "tmpfs", 0, NULL);
	mkdir("/changes/upper", 0755);
	mkdir("/changes/work", 0755);
	mount_at("overlay", "/new", "overlay", 0,
		 "lowerdir=/lower,upperdir=/changes/upper,workdir=/changes/work");
}

static void mount_kernel_file_systems(void)
{
	const unsigned long hidden = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	mount_at("proc", "/new/proc", "proc", hidden, NULL);
	mount_at("sysfs", "/new/sys", "sysfs", hidden, NULL);
	mount_at("devtmpfs", "/new/dev", "devtmpfs", MS_NOSUID, "mode=755");
	mount_at("devpts", "/new/dev/pts", "devpts", 0, "mode=620,gid=5,ptmxmode=666");
	mount_at("tmpfs", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	mount_at("tmpfs", "/new/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755");
	mount_at("cgroup2", "/new/sys/fs/cgroup", "cgroup2", hidden, NULL);
	mount_at("debugfs", "/new/sys/kernel/debug", "debugfs", hidden, NULL);
	symlink("/proc/self/fd", "/new/dev/fd");
	symlink("/proc/self/fd/0", "/new/dev/stdin");
	symlink("/proc/self/fd/1", "/new/dev/stdout");
	symlink("/proc/self/fd/2", "/new/dev/stderr");
}

static void enter_root(void)
{
	/* An initramfs cannot be pivoted away: move the new root over it. */
	if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("enter the root file system");
}

static void name_and_loopback(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	sethostname("hmd", 3);
	if (fd < 0)
		return;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	ioctl(fd, SIOCSIFFLAGS, &request);
	close(fd);
}

void boot(char *successor[MAX_WORDS])
{
	mount_at("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount_at("sysfs", "/sys", "sysfs", 0, NULL);
	load_modules();
	wait_for_port();
	mount_root();
	mount_kernel_file_systems();
	mount_shares();
	read_successor(successor);
	enter_root();
	name_and_loopback();
}

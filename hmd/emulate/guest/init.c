/*
 * The emulated machine's first process: mounts, then runs commands for the launcher.
 *
 * Apart from four kernel modules it is the whole initramfs. At boot it loads the modules and mounts
 * the host's file system read-only over 9p under a tmpfs overlay, the writable shares, and the
 * kernel's file systems. Then it runs jobs for the launcher over one virtio-serial port, in frames
 * {u32 type, u32 job, u32 length} + payload, little endian (hmd/emulate/guest_agent.py is the other
 * end). One poll loop, no threads, no memory except the table of jobs.
 *
 * If the initramfs names another first process, that replaces this one once all is mounted, and
 * this one continues as its first child.
 *
 * Statically linked, because nothing else exists when it starts.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_JOBS 64
#define MAX_STRINGS 4096
#define MAX_PAYLOAD (1 << 20)
#define CHUNK 65536

enum frame_type {
	/* to the guest */
	START = 1, /* u32 flags, u32 argc, u32 envc, then cwd, argv, env as NUL-ended strings */
	STDIN = 2, /* data; of length 0: end of file. One at a time: the next after STDIN_TAKEN */
	SIGNAL = 3, /* u32 number, to the job's process group */
	SYNC = 4,
	POWEROFF = 5,
	/* from the guest */
	READY = 16,
	STDOUT = 17,
	STDERR = 18,
	STDIN_TAKEN = 19,
	EXIT = 20, /* u32 wait status */
	SYNCED = 21,
	FAILED = 22, /* text: why the machine cannot serve */
};

enum start_flags { WITH_STDIN = 1 };

struct frame {
	uint32_t type, job, length;
};

struct job {
	uint32_t id;
	pid_t pid; /* 0: free slot */
	int input, output[2];
	char *pending; /* the STDIN frame being written */
	size_t pending_length, pending_done;
};

static int port = -1;
static struct job jobs[MAX_JOBS];
static char payload[MAX_PAYLOAD + 1];
static char *successor[MAX_STRINGS]; /* the other first process, NULL where there is none */

static void power_off(void)
{
	sync();
	/* -no-reboot turns a restart into the end of QEMU, sooner than an ACPI power-off. */
	reboot(RB_AUTOBOOT);
	_exit(1);
}

static int write_all(int fd, const void *data, size_t length)
{
	while (length) {
		ssize_t done = write(fd, data, length);
		if (done < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (done <= 0)
			return -1;
		data = (const char *)data + done;
		length -= done;
	}
	return 0;
}

static void send_frame(uint32_t type, uint32_t job, const void *data, uint32_t length)
{
	struct frame frame = { type, job, length };

	if (write_all(port, &frame, sizeof frame) || write_all(port, data, length))
		power_off(); /* the launcher has gone */
}

static void fail(const char *format, ...)
{
	char text[512];
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	length += snprintf(text + length, sizeof text - length, ": %s", strerror(error));
	if (port >= 0)
		send_frame(FAILED, 0, text, length);
	dprintf(2, "hmd: %s\n", text);
	power_off();
}

/* ---- boot ---- */

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
static void read_successor(void)
{
	FILE *words = fopen("/first", "re");
	size_t room = 0;

	for (int i = 0; words && i < MAX_STRINGS - 1; i++) {
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

static void boot(void)
{
	mount_at("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount_at("sysfs", "/sys", "sysfs", 0, NULL);
	wait_for_port();
	load_modules();
	mount_root();
	mount_kernel_file_systems();
	mount_shares();
	read_successor();
	enter_root();
	name_and_loopback();
}

/* ---- jobs ---- */

static struct job *job_of(uint32_t id)
{
	for (int i = 0; i < MAX_JOBS; i++)
		if (jobs[i].pid && jobs[i].id == id)
			return &jobs[i];
	return NULL;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void become(char **arguments, char **environment, const char *folder, int input,
		   int output, int errors)
{
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	dup2(input, 0);
	dup2(output, 1);
	dup2(errors, 2);
	environ = environment;
	if (chdir(folder)) {
		dprintf(2, "hmd: cannot enter %s: %s\n", folder, strerror(errno));
		_exit(126);
	}
	execvp(arguments[0], arguments);
	dprintf(2, "hmd: cannot run %s: %s\n", arguments[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

static void refuse(uint32_t id, const char *why)
{
	send_frame(STDERR, id, why, strlen(why));
	uint32_t status = 126 << 8;
	send_frame(EXIT, id, &status, sizeof status);
}

static void spawn(uint32_t id, uint32_t flags, char **arguments, char **environment,
		  const char *folder)
{
	int input[2] = { -1, -1 }, output[2], errors[2];
	struct job *job = NULL;

	for (int i = 0; i < MAX_JOBS && !job; i++)
		if (!jobs[i].pid)
			job = &jobs[i];
	if (!job) {
		refuse(id, "hmd: too many jobs at once in the emulated machine\n");
		return;
	}
	if (pipe2(output, O_CLOEXEC) || pipe2(errors, O_CLOEXEC))
		fail("pipe");
	if (flags & WITH_STDIN) {
		if (pipe2(input, O_CLOEXEC))
			fail("pipe");
	} else {
		input[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	pid_t pid = fork();
	if (pid == 0)
		become(arguments, environment, folder, input[0], output[1], errors[1]);
	close(input[0]);
	close(output[1]);
	close(errors[1]);
	if (pid < 0) {
		close_fd(&input[1]);
		close(output[0]);
		close(errors[0]);
		refuse(id, "hmd: the emulated machine cannot fork\n");
		return;
	}
	if (input[1] >= 0)
		fcntl(input[1], F_SETFL, O_NONBLOCK);
	fcntl(output[0], F_SETFL, O_NONBLOCK);
	fcntl(errors[0], F_SETFL, O_NONBLOCK);
	*job = (struct job){ id, pid, input[1], { output[0], errors[0] }, NULL, 0, 0 };
}

static void start(uint32_t id, uint32_t length)
{
	static char *strings[MAX_STRINGS];
	uint32_t head[3];
	uint32_t count = 0;

	memcpy(head, payload, sizeof head);
	uint32_t argc = head[1], envc = head[2];
	payload[length] = 0;
	if (length < sizeof head || argc < 1 || argc + envc + 3 > MAX_STRINGS) {
		refuse(id, "hmd: too many arguments for the emulated machine\n");
		return;
	}
	/* Laid out as cwd, argv…, NULL, env…, NULL. */
	for (char *at = payload + sizeof head; at < payload + length; at += strlen(at) + 1) {
		if (count == 1 + argc)
			strings[count++] = NULL;
		if (count + 1 >= MAX_STRINGS)
			break;
		strings[count++] = at;
	}
	if (count == 1 + argc)
		strings[count++] = NULL;
	strings[count] = NULL;
	spawn(id, head[0], strings + 1, strings + 2 + argc, strings[0]);
}

static void forward(struct job *job, int which)
{
	static char data[CHUNK];

	for (;;) {
		ssize_t length = read(job->output[which], data, sizeof data);
		if (length < 0 && errno == EINTR)
			continue;
		if (length == 0)
			close_fd(&job->output[which]);
		if (length <= 0)
			return;
		send_frame(which ? STDERR : STDOUT, job->id, data, length);
	}
}

static void stdin_taken(struct job *job)
{
	free(job->pending);
	job->pending = NULL;
	send_frame(STDIN_TAKEN, job->id, NULL, 0);
}

static void feed(struct job *job)
{
	while (job->pending_done < job->pending_length) {
		ssize_t done = write(job->input, job->pending + job->pending_done,
				     job->pending_length - job->pending_done);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0 && errno == EAGAIN)
			return;
		if (done < 0) { /* the job reads no more */
			close_fd(&job->input);
			break;
		}
		job->pending_done += done;
	}
	stdin_taken(job);
}

static void take_stdin(struct job *job, uint32_t length)
{
	if (length == 0 || job->input < 0) {
		if (length == 0)
			close_fd(&job->input);
		stdin_taken(job);
		return;
	}
	job->pending = malloc(length);
	if (!job->pending)
		fail("memory for standard input");
	memcpy(job->pending, payload, length);
	job->pending_length = length;
	job->pending_done = 0;
	feed(job);
}

static void finish(struct job *job, uint32_t status)
{
	/* The job's output is in the pipes; later output of its children is lost. */
	for (int which = 0; which < 2; which++) {
		if (job->output[which] >= 0)
			forward(job, which);
		close_fd(&job->output[which]);
	}
	close_fd(&job->input);
	if (job->pending)
		stdin_taken(job);
	send_frame(EXIT, job->id, &status, sizeof status);
	job->pid = 0;
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < MAX_JOBS; i++)
			if (jobs[i].pid == pid)
				finish(&jobs[i], status);
}

/* ---- the launcher's frames ---- */

static void read_all(void *data, size_t length)
{
	while (length) {
		ssize_t done = read(port, data, length);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			power_off(); /* the launcher has gone */
		data = (char *)data + done;
		length -= done;
	}
}

static void serve(void)
{
	struct frame frame;
	uint32_t number;

	read_all(&frame, sizeof frame);
	if (frame.length > MAX_PAYLOAD)
		power_off();
	read_all(payload, frame.length);
	struct job *job = job_of(frame.job);
	switch (frame.type) {
	case START:
		start(frame.job, frame.length);
		break;
	case STDIN:
		if (job)
			take_stdin(job, frame.length);
		break;
	case SIGNAL:
		memcpy(&number, payload, sizeof number);
		if (job)
			kill(-job->pid, number);
		break;
	case SYNC:
		sync();
		send_frame(SYNCED, 0, NULL, 0);
		break;
	case POWEROFF:
		power_off();
	}
}

static void loop(int signals)
{
	for (;;) {
		struct pollfd polled[2 + 3 * MAX_JOBS] = { { port, POLLIN, 0 },
							   { signals, POLLIN, 0 } };
		int count = 2;

		for (int i = 0; i < MAX_JOBS; i++) {
			struct job *job = &jobs[i];
			polled[count++] = (struct pollfd){ job->pid ? job->output[0] : -1, POLLIN, 0 };
			polled[count++] = (struct pollfd){ job->pid ? job->output[1] : -1, POLLIN, 0 };
			polled[count++] = (struct pollfd){ job->pid && job->pending ? job->input : -1,
							   POLLOUT, 0 };
		}
		if (poll(polled, count, -1) < 0)
			continue;
		for (int i = 0; i < MAX_JOBS; i++) {
			if (polled[2 + 3 * i].revents)
				forward(&jobs[i], 0);
			if (polled[3 + 3 * i].revents)
				forward(&jobs[i], 1);
			if (polled[4 + 3 * i].revents)
				feed(&jobs[i]);
		}
		if (polled[1].revents) {
			struct signalfd_siginfo gone;
			read(signals, &gone, sizeof gone);
			reap();
		}
		if (polled[0].revents & POLLIN)
			serve();
		else if (polled[0].revents & POLLHUP)
			power_off();
	}
}

/* PID 1 must remain PID 1: the parent executes the other program. */
static void hand_over(void)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid == 0)
		return;
	close(port);
	execv(successor[0], successor);
	fail("start %s", successor[0]);
}

int main(void)
{
	sigset_t children;

	boot();
	if (successor[0])
		hand_over();
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	sigprocmask(SIG_BLOCK, &children, NULL);
	int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
	send_frame(READY, 0, NULL, 0);
	loop(signals);
}

/* SPDX-License-Identifier: MIT */
/*
 * The emulated machine's first process: mounts, then runs commands for the launcher.
 *
 * Apart from four kernel modules it is the whole initramfs. At boot it loads the modules and mounts
 * the host's file system read-only over 9p under a tmpfs overlay, the writable shares, and the
 * kernel's file systems (boot.c). Then it runs commands (jobs.c) for the launcher, in frames over
 * one virtio-serial port (frames.c). One poll loop, no threads, no memory except the jobs'.
 *
 * If the initramfs names another first process, that replaces this one once all is mounted, and
 * this one continues as its first child.
 *
 * Statically linked, because nothing else exists when it starts.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "boot.h"
#include "frames.h"
#include "jobs.h"

static void serve(void)
{
	struct frame frame = read_frame();
	uint32_t number;

	switch (frame.type) {
	case START:
		start_job(frame.job, frame.length);
		break;
	case STDIN:
		take_stdin(frame.job, frame.length);
		break;
	case SIGNAL:
		memcpy(&number, payload, sizeof number);
		signal_job(frame.job, number);
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
	struct pollfd polled[2 + MAX_JOB_POLLS] = { { port, POLLIN, 0 }, { signals, POLLIN, 0 } };

	for (;;) {
		watch_jobs(polled + 2);
		if (poll(polled, 2 + MAX_JOB_POLLS, -1) < 0)
			continue;
		serve_jobs(polled + 2);
		if (polled[1].revents) {
			struct signalfd_siginfo gone;
			read(signals, &gone, sizeof gone);
			reap_jobs();
		}
		if (polled[0].revents & POLLIN)
			serve();
		else if (polled[0].revents & POLLHUP)
			power_off();
	}
}

/* PID 1 must remain PID 1: the parent executes the other program. */
static void hand_over(char *successor[])
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
	static char *successor[MAX_WORDS];
	sigset_t children;

	boot(successor);
	if (successor[0])
		hand_over(successor);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	sigprocmask(SIG_BLOCK, &children, NULL);
	int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
	send_frame(READY, 0, NULL, 0);
	loop(signals);
}

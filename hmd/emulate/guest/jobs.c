/* SPDX-License-Identifier: MIT */
/* The commands that the guest's first process runs for the launcher. */
#define _GNU_SOURCE
#include "jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frames.h"

#define MAX_STRINGS 4096
#define CHUNK 65536

struct job {
	uint32_t id;
	pid_t pid; /* 0: free slot */
	int input, output[2];
	char *pending; /* the STDIN frame being written */
	size_t pending_length, pending_done;
};

static struct job jobs[MAX_JOBS];

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

void start_job(uint32_t id, uint32_t length)
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

void take_stdin(uint32_t id, uint32_t length)
{
	struct job *job = job_of(id);

	if (!job)
		return;
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

void reap_jobs(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < MAX_JOBS; i++)
			if (jobs[i].pid == pid)
				finish(&jobs[i], status);
}

void signal_job(uint32_t id, int number)
{
	struct job *job = job_of(id);

	if (job)
		kill(-job->pid, number);
}

void watch_jobs(struct pollfd polled[MAX_JOB_POLLS])
{
	for (int i = 0; i < MAX_JOBS; i++) {
		const struct job *job = &jobs[i];
		struct pollfd *at = &polled[3 * i];

		at[0] = (struct pollfd){ job->pid ? job->output[0] : -1, POLLIN, 0 };
		at[1] = (struct pollfd){ job->pid ? job->output[1] : -1, POLLIN, 0 };
		at[2] = (struct pollfd){ job->pid && job->pending ? job->input : -1, POLLOUT, 0 };
	}
}

void serve_jobs(const struct pollfd polled[MAX_JOB_POLLS])
{
	for (int i = 0; i < MAX_JOBS; i++) {
		if (polled[3 * i].revents)
			forward(&jobs[i], 0);
		if (polled[3 * i + 1].revents)
			forward(&jobs[i], 1);
		if (polled[3 * i + 2].revents)
			feed(&jobs[i]);
	}
}

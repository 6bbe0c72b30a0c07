/* SPDX-License-Identifier: MIT */
/* The commands that the guest's first process runs for the launcher. */
#ifndef HMD_GUEST_JOBS_H
#define HMD_GUEST_JOBS_H

#include <poll.h>
#include <stdint.h>

#define MAX_JOBS 64
#define MAX_JOB_POLLS (3 * MAX_JOBS)

/* Start the command of a START frame, whose payload has this length, as job `id`. */
void start_job(uint32_t id, uint32_t length);

/* Write the payload of a STDIN frame to the job's standard input; of length 0: close that. */
void take_stdin(uint32_t id, uint32_t length);

/* Send a signal to the process group of the job, if it runs. */
void signal_job(uint32_t id, int number);

/* Report all jobs that have ended. */
void reap_jobs(void);

/* Fill `polled` with the pipes of all jobs, and after poll(2) serve those that are ready. */
void watch_jobs(struct pollfd polled[MAX_JOB_POLLS]);
void serve_jobs(const struct pollfd polled[MAX_JOB_POLLS]);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Memory that is mapped, written once and given back, all the time: allocators, short-lived children.
 *
 *   churn maps BYTES ROUNDS     maps BYTES, writes each page, unmaps them
 *   churn spawn BYTES ROUNDS    forks a child that writes BYTES of its own and ends
 *
 * Each round reads a word of an array of BYTES that stays; its sum shows that all rounds ran.
 */
#include "common.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static bool maps(size_t bytes, unsigned char round)
{
	unsigned char *area = array_of(bytes, 1);
	bool right = true;

	for (size_t at = 0; at < bytes; at += PAGE)
		area[at] = round;
	for (size_t at = 0; at < bytes; at += PAGE)
		right &= area[at] == round;
	munmap(area, bytes);
	return right;
}

static bool spawn(size_t bytes, unsigned char round)
{
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(maps(bytes, round) ? 0 : 1);
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
	const size_t bytes = argument(argc, argv, 2), rounds = argument(argc, argv, 3);
	const size_t words = bytes / sizeof(uint64_t);
	const bool forks = strcmp(argv[1], "spawn") == 0;
	uint64_t *stays = array_of(words, sizeof(*stays)), sum = 0;
	bool right = true;

	for (size_t i = 0; i < words; i++)
		stays[i] = i;
	for (size_t round = 1; round <= rounds; round++) {
		right &= forks ? spawn(bytes, (unsigned char)round) : maps(bytes, (unsigned char)round);
		sum += stays[round % words];
	}
	return report("churn", right && sum == rounds * (rounds + 1) / 2, (double)rounds);
}

/* SPDX-License-Identifier: MIT */
/*
 * A client that asks a memcached server, and checks every reply.
 *
 *   memcached_load SOCKET REQUESTS WORDS BATCH
 *
 * Requests and values are those of bench/suite/programs/redis_load.c: a key to ask for, or a key
 * and a number to store, in batches. When all are answered rightly, the server is shut down.
 */
#include "../suite/programs/common.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEYS (1 << 20)
#define DIGITS 12
#define TRIES 10000 /* to connect, each a millisecond after the last */

static FILE *in, *out;
static char *value, *found;
static size_t words;
static uint32_t last[KEYS]; /* what was stored in each key last */

static void fail(const char *what)
{
	fprintf(stderr, "memcached_load: %s\n", what);
	exit(1);
}

static void connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	int tries = TRIES;

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	/* An earlier server leaves its socket behind. */
	while (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		if (!tries--)
			fail("cannot reach the server");
		usleep(1000);
	}
	in = fdopen(fd, "r");
	out = fdopen(dup(fd), "w");
	if (in == NULL || out == NULL)
		fail("no memory");
}

static void spell(uint32_t number)
{
	char digits[DIGITS + 1];

	snprintf(digits, sizeof(digits), "%012" PRIu32, number);
	for (size_t i = 0; i < words; i++)
		memcpy(value + i * DIGITS, digits, DIGITS);
}

static void expect_line(const char *expected)
{
	char line[64];

	if (fgets(line, sizeof(line), in) == NULL)
		fail("the server is gone");
	if (strcmp(line, expected) != 0)
		fail("the server did not answer as it should");
}

static void ask(uint32_t key, const char *stored)
{
	if (*stored != ' ') {
		fprintf(out, "get key:%07" PRIu32 "\r\n", key);
		return;
	}
	spell((uint32_t)strtoul(stored, NULL, 10));
	fprintf(out, "set key:%07" PRIu32 " 0 0 %zu\r\n", key, words * DIGITS);
	fwrite(value, DIGITS, words, out);
	fputs("\r\n", out);
}

static void check(uint32_t key, const char *stored)
{
	char line[64];

	if (*stored == ' ') {
		last[key] = (uint32_t)strtoul(stored, NULL, 10);
		expect_line("STORED\r\n");
		return;
	}
	snprintf(line, sizeof(line), "VALUE key:%07" PRIu32 " 0 %zu\r\n", key, words * DIGITS);
	expect_line(line);
	spell(last[key]);
	if (fread(found, 1, words * DIGITS, in) != words * DIGITS ||
	    memcmp(found, value, words * DIGITS) != 0)
		fail("a value is not what was stored");
	expect_line("\r\n");
	expect_line("END\r\n");
}

int main(int argc, char **argv)
{
	const size_t most = argument(argc, argv, 4);
	char(*lines)[64] = array_of(most, sizeof(*lines));
	FILE *file = fopen(argv[2], "r");
	size_t total = 0, count;

	words = argument(argc, argv, 3);
	value = array_of(words, DIGITS);
	found = array_of(words, DIGITS);
	if (file == NULL)
		fail("cannot read the requests");
	connect_to(argv[1]);
	do {
		char *stored;

		for (count = 0; count < most && fgets(lines[count], 64, file) != NULL; count++) {
			if (strtoul(lines[count], &stored, 10) >= KEYS)
				fail("a key is too large");
			ask((uint32_t)strtoul(lines[count], NULL, 10), stored);
		}
		fflush(out);
		for (size_t i = 0; i < count; i++) {
			const uint32_t key = (uint32_t)strtoul(lines[i], &stored, 10);

			check(key, stored);
		}
		total += count;
	} while (count > 0);
	fputs("shutdown\r\n", out);
	fflush(out);
	return report("memcached_load", total > 0, (double)total);
}

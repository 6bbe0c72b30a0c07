/* SPDX-License-Identifier: MIT */
/*
 * A client that asks a redis server, and checks every reply.
 *
 *   redis_load SOCKET REQUESTS WORDS BATCH
 *
 * Each line of the file REQUESTS is a key to ask for, or a key and a number to store; a value is
 * the number in twelve digits, WORDS times over. Requests go out in batches, each after the
 * replies to the one before. When all are answered rightly, the server is shut down.
 */
#include "common.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEYS (1 << 20)
#define DIGITS 12
#define NONE UINT32_MAX

struct request {
	uint32_t key, stored; /* NONE: ask for it */
};

struct client {
	FILE *in, *out;
	size_t words;
	char *value, *found;
	uint32_t last[KEYS]; /* what was stored in each key last */
};

static void fail(const char *what)
{
	fprintf(stderr, "redis_load: %s\n", what);
	exit(1);
}

static void connect_to(struct client *c, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("cannot reach the server");
	c->in = fdopen(fd, "r");
	c->out = fdopen(dup(fd), "w");
	if (c->in == NULL || c->out == NULL)
		fail("no memory");
}

static void spell_value(struct client *c, uint32_t number)
{
	char digits[DIGITS + 1];

	snprintf(digits, sizeof(digits), "%012" PRIu32, number);
	for (size_t i = 0; i < c->words; i++)
		memcpy(c->value + i * DIGITS, digits, DIGITS);
}

static void send_request(struct client *c, const struct request *r)
{
	if (r->stored == NONE) {
		fprintf(c->out, "*2\r\n$3\r\nGET\r\n$11\r\nkey:%07" PRIu32 "\r\n", r->key);
		return;
	}
	spell_value(c, r->stored);
	fprintf(c->out, "*3\r\n$3\r\nSET\r\n$11\r\nkey:%07" PRIu32 "\r\n$%zu\r\n", r->key, c->words * DIGITS);
	fwrite(c->value, DIGITS, c->words, c->out);
	fputs("\r\n", c->out);
}

static void check_reply(struct client *c, const struct request *r)
{
	char line[64], expected[64];

	if (fgets(line, sizeof(line), c->in) == NULL)
		fail("the server is gone");
	if (r->stored != NONE) {
		c->last[r->key] = r->stored;
		if (strcmp(line, "+OK\r\n") != 0)
			fail("the server did not store a value");
		return;
	}
	snprintf(expected, sizeof(expected), "$%zu\r\n", c->words * DIGITS);
	spell_value(c, c->last[r->key]);
	if (strcmp(line, expected) != 0 || fread(c->found, 1, c->words * DIGITS, c->in) != c->words * DIGITS ||
	    memcmp(c->found, c->value, c->words * DIGITS) != 0 || fgets(line, sizeof(line), c->in) == NULL)
		fail("a value is not what was stored");
}

/* Reads up to `most` requests; returns how many there were. */
static size_t read_batch(FILE *file, struct request *batch, size_t most)
{
	char line[64];
	size_t count = 0;

	while (count < most && fgets(line, sizeof(line), file) != NULL) {
		char *end;

		batch[count].key = (uint32_t)strtoul(line, &end, 10);
		batch[count].stored = *end == ' ' ? (uint32_t)strtoul(end, NULL, 10) : NONE;
		if (batch[count++].key >= KEYS)
			fail("a key is too large");
	}
	return count;
}

int main(int argc, char **argv)
{
	static struct client c;
	const size_t most = argument(argc, argv, 4);
	struct request *batch = array_of(most, sizeof(*batch));
	FILE *file = fopen(argv[2], "r");
	size_t count, total = 0;

	c.words = argument(argc, argv, 3);
	c.value = array_of(c.words, DIGITS);
	c.found = array_of(c.words, DIGITS);
	if (file == NULL)
		fail("cannot read the requests");
	connect_to(&c, argv[1]);
	while ((count = read_batch(file, batch, most)) > 0) {
		for (size_t i = 0; i < count; i++)
			send_request(&c, &batch[i]);
		fflush(c.out);
		for (size_t i = 0; i < count; i++)
			check_reply(&c, &batch[i]);
		total += count;
	}
	fputs("*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n", c.out);
	fflush(c.out);
	return report("redis_load", total > 0, (double)total);
}

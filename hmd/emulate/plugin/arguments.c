/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "pacing.h"

#define ARGUMENTS_MAX_STEP_NS 1e6

int arguments_refuse(const char *what, const char *why)
{
	fprintf(stderr, "hmd plugin: %s: %s\n", what, why);
	return -1;
}

static const char *value_of(const char *argument, const char *key)
{
	size_t length = strlen(key);

	if (strncmp(argument, key, length) || argument[length] != '=')
		return NULL;
	return argument + length + 1;
}

static int parse_number(const char *text, double most, double *number)
{
	char *end;

	*number = strtod(text, &end);
	return end == text || *end || !(*number >= 0 && *number <= most) ? -1 : 0;
}

int arguments_parse(struct arguments *arguments, int argc, char **argv)
{
	const char *value;

	*arguments = (struct arguments){ .dilation = -1 };
	for (int i = 0; i < argc; i++) {
		if ((value = value_of(argv[i], "shared")))
			arguments->shared = value;
		else if ((value = value_of(argv[i], "params")))
			arguments->params = value;
		else if ((value = value_of(argv[i], "recording")))
			arguments->recording = value;
		else if ((value = value_of(argv[i], "step"))) {
			if (parse_number(value, ARGUMENTS_MAX_STEP_NS, &arguments->step_ns))
				return arguments_refuse(argv[i],
							"must be a number from 0 to 1000000");
		} else if (!(value = value_of(argv[i], "dilation")))
			return arguments_refuse(argv[i],
						"not an argument; these are shared, params, "
						"recording, step, dilation");
		else if (parse_number(value, PACING_MAX_DILATION, &arguments->dilation))
			return arguments_refuse(argv[i], "must be a number from 0 to 10000");
	}
	if (!arguments->shared)
		return arguments_refuse(
			"shared", "missing: shared=FILE names the memory shared with the guest");
	if (!arguments->params)
		return arguments_refuse("params",
					"missing: params=FILE names the timing parameters");
	if (arguments->dilation < 0)
		return arguments_refuse(
			"dilation", "missing: dilation=20 makes host time 20 times modelled time");
	return 0;
}

int arguments_read_params(const char *path, struct timing_params *params, const char **why)
{
	FILE *file = fopen(path, "rb");

	if (!file) {
		*why = strerror(errno);
		return -1;
	}

	/* One byte more than there should be is asked for, to see a file that is too long. */
	size_t got = fread(params, 1, sizeof(*params), file);
	int more = fgetc(file) != EOF;
	fclose(file);
	if (got != sizeof(*params) || more) {
		*why = "not one struct timing_params of this version of hmd";
		return -1;
	}
	return 0;
}

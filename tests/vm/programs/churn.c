/* SPDX-License-Identifier: MIT */
/*
 * A process that does all that a process may do to its memory while its pages are moved: it
 * writes, forks, unmaps and maps again, replaces itself by exec, and exits, and checks every
 * word that it reads.
 *
 *     churn ROUNDS [GENERATION]
 *
 * Prints "ready" when its memory stands and "intact WORDS" at the end; exits 1 at a wrong word.
 * After a third of the rounds it executes itself again, and once more after a third of those left.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define KEPT_PAGES 1024UL
#define BRIEF_PAGES 256UL
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t word(uint64_t page, uint64_t i, uint64_t generation)
{
    uint64_t x = (page << 32 ^ i << 16 ^ generation) * 0x9E3779B97F4A7C15UL;
    return x ^ x >> 29;
}

static void fill(uint64_t *at, uint64_t page, uint64_t generation)
{
    for (uint64_t i = 0; i < WORDS; i++)
        at[page * WORDS + i] = word(page, i, generation);
}

static void check(const uint64_t *at, uint64_t page, uint64_t generation, const char *where)
{
    for (uint64_t i = 0; i < WORDS; i++) {
        if (at[page * WORDS + i] != word(page, i, generation)) {
            printf("wrong word %lu of page %lu %s\n", i, page, where);
            fflush(stdout);
            _exit(1);
        }
    }
}

static uint64_t *map(uint64_t pages)
{
    void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
}

/* A child sees the memory of the moment of the fork, whatever its parent writes and moves. */
static void fork_and_check(uint64_t *kept, const uint64_t *generations, uint64_t round)
{
    pid_t child = fork();
    if (child == 0) {
        for (uint64_t page = round % 4; page < KEPT_PAGES; page += 4)
            check(kept, page, generations[page], "in a child");
        fill(kept, round % KEPT_PAGES, ~round);
        _exit(0);
    }
    for (uint64_t page = 0; page < KEPT_PAGES; page += 64)
        fill(kept, page, generations[page]);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("a child ended with %d\n", status);
        fflush(stdout);
        _exit(1);
    }
}

int main(int argc, char **argv)
{
    uint64_t rounds = strtoul(argv[1], NULL, 10);
    uint64_t generation = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    uint64_t *kept = map(KEPT_PAGES);
    static uint64_t generations[KEPT_PAGES];
    uint64_t words = 0;

    for (uint64_t page = 0; page < KEPT_PAGES; page++)
        fill(kept, page, generations[page] = generation);
    if (argc == 2)
        puts("ready");
    fflush(stdout);

    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t *brief = map(BRIEF_PAGES);
        for (uint64_t page = 0; page < BRIEF_PAGES; page++)
            fill(brief, page, round);
        for (uint64_t k = 0; k < 128; k++) {
            uint64_t page = (round * 131 + k * 7) % KEPT_PAGES;
            check(kept, page, generations[page], "that was kept");
            fill(kept, page, generations[page] = generation + round);
            words += WORDS;
        }
        if (round % 8 == 3)
            fork_and_check(kept, generations, round);
        for (uint64_t page = 0; page < BRIEF_PAGES; page += 2)
            check(brief, page, round, "of a brief mapping");
        munmap(brief, BRIEF_PAGES * PAGE);
        if (argc < 5 && round == rounds / 3) {
            char left[32], next[32];
            snprintf(left, sizeof left, "%lu", rounds - round - 1);
            snprintf(next, sizeof next, "%lu", generation + rounds);
            /* One argument more each time, so that it ends. */
            char *again[] = {argv[0], left, next, "again", argc > 3 ? "twice" : NULL, NULL};
            execv("/proc/self/exe", again);
            perror("execv");
            return 2;
        }
    }
    for (uint64_t page = 0; page < KEPT_PAGES; page++)
        check(kept, page, generations[page], "at the end");
    printf("intact %lu\n", words + KEPT_PAGES * WORDS);
    return 0;
}

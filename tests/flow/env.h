/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define EXIT_SKIP 77

/*
 * Put this process into a network namespace of its own with "lo" up, make a private directory that
 * user nobody may use, raise RLIMIT_NOFILE to its hard limit and ignore SIGPIPE.  Exits with
 * EXIT_SKIP and a reason if that needs more privilege.  The program is ended by SIGALRM, whatever
 * it hangs on, after four times MAX_SECONDS: that is what it may take where nothing else runs.
 * Call before any thread is started.
 */
void env_enter(const char *prog, unsigned int max_seconds);

/* The file PATH says TEXT; false and errno if it cannot. */
bool env_put(const char *path, const char *text);

/* The private directory; removed with its content when this process ends, in whatever way. */
const char *env_dir(void);

/*
 * Call FN in another process when this one has ended, in whatever way, or has closed *RET_LINE.
 * There FD is descriptor 1.  Returns its PID.
 */
pid_t env_at_end(int fd, void (*fn)(void), int *ret_line);

/* How much longer than usual to wait: CULVERT_TEST_SLOW, for emulated machines; 1 without it. */
int env_slow(void);

/* Whether the kernel has IPv6; some run without. */
bool env_has_ipv6(void);

/* Exits with EXIT_SKIP and the reason if it has not. */
void env_need_ipv6(const char *prog);

/* CLOCK_MONOTONIC in milliseconds. */
int64_t now_ms(void);

/* "8M", "64K", "17" (powers of 1024); exits with a message on anything else. */
uint64_t parse_bytes(const char *text);

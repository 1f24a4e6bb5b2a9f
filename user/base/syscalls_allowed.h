/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <limits.h>
#include <seccomp.h>

/*
 * The system calls that the daemon's seccomp filter allows (base/sandbox.h).  Each module says
 * beside its code which system calls it makes while the daemon runs, and with which arguments where
 * that matters:
 *
 *   SYSCALLS_ALLOWED(
 *           SYSCALL(accept4),
 *           SETSOCKOPT(SOL_SOCKET, SO_LINGER),
 *           SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_UNIX)));
 *
 * Calls that are made only before "ready" (open, bind, bpf(BPF_PROG_LOAD), clone, ...) are not
 * listed.
 */

/*
 * Parts of the daemon that not every configuration needs.  The calls of an unused part are refused.
 */
enum {
	PART_SOCKMAP = 1,      /* sockmap is in use */
	PART_GRAFT = 2,        /* sessions may be grafted */
	PART_NOTIFY = 4,       /* systemd gets notifications */
	PART_PRIVILEGED = 8,   /* there is a privileged process */
	PART_SESSION_LOG = 16, /* a session log that is a file may have to be opened anew */
	PART_NAMES = 32,       /* names of hosts and interfaces may have to be looked up */
};

#define SYSCALL_ARGS_MAX 3

struct syscall_need {
	int call;                                   /* of SCMP_SYS() */
	unsigned int part;                          /* 0: always */
	struct scmp_arg_cmp args[SYSCALL_ARGS_MAX]; /* all must hold; op 0: no more */
};

#define SYSCALL_IF(p, name, ...)                                                                   \
	{                                                                                          \
		.call = SCMP_SYS(name), .part = (p), .args = { __VA_ARGS__ }                       \
	}
#define SYSCALL(name, ...) SYSCALL_IF(0, name, __VA_ARGS__)
/* Bits of argument N.  The upper half of the register is undefined if the argument is an int. */
#define SYSCALL_ARG_BITS(n, mask, value)                                                           \
	{                                                                                          \
		(n), SCMP_CMP_MASKED_EQ, (mask)&0xffffffffU, (value)&0xffffffffU                   \
	}
#define SYSCALL_ARG(n, value) SYSCALL_ARG_BITS(n, 0xffffffffU, value)

#define SETSOCKOPT_IF(p, level, name)                                                              \
	SYSCALL_IF(p, setsockopt, SYSCALL_ARG(1, level), SYSCALL_ARG(2, name))
#define BPF_IF(p, command) SYSCALL_IF(p, bpf, SYSCALL_ARG(0, command))
#define SETSOCKOPT(level, name) SETSOCKOPT_IF(0, level, name)

#define SYSCALLS_END INT_MIN

/*
 * Put a pointer to the table into a section of its own.  The linker gathers the pointers of all
 * modules there.
 */
#define SYSCALLS_ALLOWED(...)                                                                      \
	static const struct syscall_need syscalls_needed[] = { __VA_ARGS__,                        \
							       { .call = SYSCALLS_END } };         \
	__attribute__((used, section("syscall_needs"))) static const struct syscall_need           \
		*const syscalls_needed_at = syscalls_needed

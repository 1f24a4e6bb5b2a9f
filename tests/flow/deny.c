/* SPDX-License-Identifier: BSD-2-Clause */
#include "deny.h"

#include <err.h>
#include <seccomp.h>

void deny_syscall(int nr, int error, int arg, uint64_t value)
{
	uint32_t verdict = error ? SCMP_ACT_ERRNO((uint32_t)error) : SCMP_ACT_KILL_PROCESS;
	struct scmp_arg_cmp is = { (unsigned int)arg, SCMP_CMP_EQ, value, 0 };
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);

	if (!f || seccomp_attr_set(f, SCMP_FLTATR_CTL_NNP, 0) ||
	    seccomp_rule_add_array(f, verdict, nr, arg >= 0, &is) || seccomp_load(f))
		errx(1, "cannot load a seccomp filter");
	seccomp_release(f);
}

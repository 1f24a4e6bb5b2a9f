/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* Documented in culvert(8); scripts rely on them. */
enum exit_code {
	EXIT_CODE_OK = 0,
	EXIT_CODE_FAILURE = 1,     /* something failed at run time: another try may work */
	EXIT_CODE_USAGE = 2,       /* bad option, address, value or file: another try fails, too */
	EXIT_CODE_UNSUPPORTED = 3, /* a needed kernel feature or privilege is missing */
	EXIT_CODE_NO_DAEMON = 4,   /* no daemon answers on the control socket */
};

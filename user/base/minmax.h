/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdint.h>

static inline uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

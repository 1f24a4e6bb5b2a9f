/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config/option.h"
#include "config/read.h"

/* What holds for every configuration, whatever it came from. */

#define MODEL_PATH "fuzz.conf"

/* Parse DATA as the file of `culvert run --config fuzz.conf`. */
int model_parse(const uint8_t *data, size_t size, struct config *c);
/* Check that R says of mistakes in DATA, each of which a line on stderr describes. */
void model_must_be_mistake(int r, const uint8_t *data, size_t size);
/* Check C: all numbers are within the bounds of the table, no two forwards listen alike. */
void model_must_be_sane(const struct config *c);
/* Check that what `culvert convert` writes of C says the same. */
void model_must_convert(const struct config *c);

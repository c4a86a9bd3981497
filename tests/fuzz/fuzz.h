/* What all fuzz targets begin with. */
#ifndef SLUICE_FUZZ_H
#define SLUICE_FUZZ_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static inline void demand(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz: not %s; the last error: %s\n", what, sl_error_text());
    abort();
}

#endif

/* How each example ends. */
#ifndef EXAMPLES_EXIT_CODE_H
#define EXAMPLES_EXIT_CODE_H

#include <sluice/status.h>

#include <stdio.h>

/* What main returns; prints the error, where there is one. */
static inline int exit_code(const char *program, sl_status status)
{
    if (status != SL_OK)
        fprintf(stderr, "%s: %s\n", program, sl_error_text());
    return status == SL_OK ? 0 : 1;
}

#endif

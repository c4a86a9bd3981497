/* The environment variables of sl_environment_rows, read when an object that they concern is
 * created. */
#ifndef SLI_CORE_ENVIRONMENT_H
#define SLI_CORE_ENVIRONMENT_H

#include "sluice/app/option.h"

/* The value of a variable that has a row; *out is NULL where it is not set or empty. Errors:
 * SL_ERR_INVALID names the variable, its values and what came. */
sl_status sli_environment_read(const char *name, const char **out);

/* Whether SL_DEBUG, a list such as "memory,ddp", contains `value`. Errors: the same, for a word of
 * the list. */
sl_status sli_debug_contains(const char *value, bool *out);

#endif

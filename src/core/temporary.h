/* The names that files and directories have until they are complete, or while they are removed:
 *
 *     DIR/NAME   is written as   DIR/.NAME.0123456789abcdef.tmp
 *
 * Whoever writes one holds a shared lock on it (flock). One without a lock is a leftover: its
 * writer has died, and the next that writes NAME removes it. On file systems without locks
 * leftovers stay, since nobody can tell who still writes them. */
#ifndef SLI_CORE_TEMPORARY_H
#define SLI_CORE_TEMPORARY_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SLI_TEMPORARY_BYTES = 256 }; /* of a temporary name, with its end */

/* A number that no other name has. Errors, which begin with `shown`: SL_ERR_IO. */
sl_status sli_draw_number(const char *shown, uint64_t *out);

/* The temporary name of `name`, of which 200 bytes are kept, into out [SLI_TEMPORARY_BYTES]. */
void sli_temporary_name(const char *name, uint64_t number, char *out);

/* Whether it is a temporary name, and of what: `of` [SLI_TEMPORARY_BYTES]. */
bool sli_temporary_parse(const char *name, char *of);

/* Locks the file or directory `name` that was created as `descriptor`. False where a sweep was
 * quicker and has removed it: then it is to be created again. */
bool sli_temporary_hold(int directory, const char *name, int descriptor);

/* Removes the leftovers in `directory` of whatever `is_ours` accepts, as far as possible. */
void sli_temporary_sweep(int directory, bool (*is_ours)(const void *context, const char *of),
                         const void *context);

/* The same of `name` alone. */
void sli_temporary_sweep_name(int directory, const char *name);

#endif

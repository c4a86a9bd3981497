/* Arrays that may be larger than memory. Up to SLI_LARGE_BYTES one is allocated; a larger one lies
 * in a file without a name, mapped, whose pages the system writes out when it needs their memory.
 * The file is in the directory that TMPDIR names, else in /var/tmp or /tmp, whichever has room.
 * Where none has, the array is allocated too. */
#ifndef SLI_CORE_LARGE_ARRAY_H
#define SLI_CORE_LARGE_ARRAY_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { SLI_LARGE_BYTES = 1 << 24 };

typedef struct sli_large_array {
    void *data;   /* moves when the array grows */
    size_t bytes; /* that there is room for */
    bool is_mapped;
    int file;      /* its descriptor, while it can grow; 0: there is none */
} sli_large_array; /* begins as zeros */

/* Makes room for so many bytes of `what` ("ids of tokens"), by steps that grow with the array,
 * which must not be finished. It is unchanged after an error: SL_ERR_MEMORY where it fits neither
 * in a file nor in memory. */
sl_status sli_large_array_reserve(sli_large_array *array, size_t bytes, const char *what);

/* Gives back the room behind so many bytes, and closes the file: the array grows no more. */
void sli_large_array_finish(sli_large_array *array, size_t bytes);

void sli_large_array_free(sli_large_array *array); /* leaves zeros */

/* A file of the directory whose name is removed, where the system makes none without a name; -1,
 * with errno: none can be made there. */
int sli_open_unlinked(const char *directory);

#endif

/* The checksum of bytes: XXH3's 128 bits, as `xxh128sum` prints them. It finds damage, not
 * forgery. */
#ifndef SLI_CORE_CHECKSUM_H
#define SLI_CORE_CHECKSUM_H

#include "sluice/status.h"

#include <stdint.h>

enum { SLI_CHECKSUM_BYTES = 33 }; /* 32 hexadecimal digits, and the end */

typedef struct sli_checksum sli_checksum;

sl_status sli_checksum_create(sli_checksum **out);
void sli_checksum_destroy(sli_checksum **sum); /* NULL is allowed */
void sli_checksum_add(sli_checksum *sum, const void *data, uint64_t bytes);

/* The checksum of all bytes added, into `text` [SLI_CHECKSUM_BYTES], which it returns. */
const char *sli_checksum_text(const sli_checksum *sum, char *text);

/* The checksum of these bytes alone, into `text` [SLI_CHECKSUM_BYTES], which it returns. */
const char *sli_checksum_of(const void *data, uint64_t bytes, char *text);

#endif

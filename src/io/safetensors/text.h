/* How names and shapes of a safetensors file are put into error sentences. */
#ifndef SLI_IO_SAFETENSORS_TEXT_H
#define SLI_IO_SAFETENSORS_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { SLI_QUOTE_BYTES = 96, SLI_SIZES_BYTES = 160 };

/* Writes `name` in double quotes to `text` [SLI_QUOTE_BYTES] and returns it, cut between two
 * characters where it is long. */
const char *sli_safetensors_quote(const char *name, char *text);

/* Writes "[20, 35]" to `text` [SLI_SIZES_BYTES], for any number of dimensions, and returns it. */
const char *sli_safetensors_sizes(int dims, const int64_t *size, char *text);

#endif

/* How names and shapes of a safetensors file are put into error sentences. */
#ifndef SLI_IO_SAFETENSORS_TEXT_H
#define SLI_IO_SAFETENSORS_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { SLI_QUOTE_BYTES = 96, SLI_SIZES_BYTES = 160 };

/* Writes `name` in double quotes to `text` [SLI_QUOTE_BYTES] and returns it. The name comes from a
 * file that may be hostile: it is cut where it is long, between two characters, and control
 * characters, which a terminal would obey, become `?`. */
const char *sli_safetensors_quote(const char *name, char *text);

/* The same without the quotes, for other text that quotes from a file. `bytes` is the room. */
const char *sli_safetensors_clean(const char *from, char *text, size_t bytes);

/* Writes "[20, 35]" to `text` [SLI_SIZES_BYTES], for any number of dimensions, and returns it. */
const char *sli_safetensors_sizes(int dims, const int64_t *size, char *text);

#endif

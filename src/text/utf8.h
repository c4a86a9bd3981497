/* Bytes that are not UTF-8. */
#ifndef SLI_TEXT_UTF8_H
#define SLI_TEXT_UTF8_H

#include <stdint.h>

enum { SLI_REPLACEMENT = 0xFFFD };

/* How many bytes at `at`, which are not UTF-8, Python's decoder replaces by one U+FFFD: what begins
 * a character, as far as it does. */
int sli_broken_bytes(const uint8_t *at, const uint8_t *end);

#endif

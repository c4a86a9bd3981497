/* Characters: bytes that are none, those that control, and those that compose. */
#ifndef SLI_TEXT_UTF8_H
#define SLI_TEXT_UTF8_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SLI_REPLACEMENT = 0xFFFD };

/* How many bytes at `at`, which are not UTF-8, Python's decoder replaces by one U+FFFD: what begins
 * a character, as far as it does. */
int sli_broken_bytes(const uint8_t *at, const uint8_t *end);

/* An ASCII control character that is not white space. */
static inline bool sli_is_control(uint8_t c)
{
    const uint32_t white_space = 0xF0003E00u; /* bit c: 0x09 to 0x0D, 0x1C to 0x1F */
    return c < 0x20 && (~white_space >> c & 1);
}

/* A copy [*bytes], malloc'ed, in which U+FFFD stands for bytes that are not UTF-8, whose number is
 * added to *invalid. Errors: SL_ERR_MEMORY; *copy may be set then too. */
sl_status sli_text_repair(const uint8_t *begin, const uint8_t *end, uint8_t **copy, size_t *bytes,
                          int64_t *invalid);

/* A copy in NFC. */
sl_status sli_text_compose(const uint8_t *begin, const uint8_t *end, uint8_t **copy, size_t *bytes);

#endif

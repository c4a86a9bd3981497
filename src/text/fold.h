/* The first half of the tokenizer: a line as Python's str.lower gives it, with what the tokenizer's
 * second half need not know of any more taken out. */
#ifndef SLI_TEXT_FOLD_H
#define SLI_TEXT_FOLD_H

#include <stdbool.h>
#include <stddef.h>

/* What becomes of a line of `bytes` bytes has at most this many. */
static inline size_t sli_fold_bytes_max(size_t bytes)
{
    return bytes + bytes / 2; /* two bytes may become three: U+0130, U+023A */
}

/* White space among ASCII, as Python's str.split has it. */
static inline bool sli_is_ascii_space(unsigned char c)
{
    return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
}

/* Writes the line to `out`: in lower case; without any "; and with a line end for each white space
 * beyond ASCII (not a blank, for "<br />" is only that with a true blank). Bytes that are not UTF-8
 * stay, and count as no letter. Returns how many bytes it wrote. */
size_t sli_fold(const char *line, size_t bytes, char *out);

#endif

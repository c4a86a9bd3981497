/* Where texts are cut into pieces before a BPE merges bytes: the patterns of known tokenizers,
 * written by hand over tables of Unicode 16. */
#ifndef SLI_TEXT_SPLITTERS_H
#define SLI_TEXT_SPLITTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sli_splitter {
    const char *name;
    const char *pattern; /* in the notation of Rust's regex; NULL: it is no single one */
    /* The end of the piece that begins at `at`, which is before `end`. The text is UTF-8. Time is
     * proportional to the piece's length and that of the white space it begins with. */
    const uint8_t *(*next)(const uint8_t *at, const uint8_t *end);
    bool composes; /* the text becomes NFC first */
} sli_splitter;

/* The splitter of that name among sl_splitters; NULL: there is none. */
const sli_splitter *sli_splitter_find(const char *name);

/* The one with that pattern, whose text becomes NFC or does not; NULL: there is none. */
const sli_splitter *sli_splitter_of_pattern(const char *pattern, bool composes);

extern const char sli_splitter_names[]; /* all, for messages */

bool sli_is_white_space(uint32_t code); /* Unicode's */
bool sli_is_letter(uint32_t code);      /* of Unicode's categories L */

#endif

/* Where texts are cut into pieces before a BPE merges bytes: the patterns of known tokenizers,
 * written by hand over tables of Unicode 16. */
#ifndef SLI_TEXT_SPLITTERS_H
#define SLI_TEXT_SPLITTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sli_splitter {
    /* The end of the piece that begins at `at`, which is before `end`. The text is UTF-8. Time is
     * proportional to the piece's length and that of the white space it begins with. */
    const uint8_t *(*next)(const uint8_t *at, const uint8_t *end);
    bool composes; /* the text becomes NFC first */
} sli_splitter;

/* The splitter of that name among sl_bpe_splitters; NULL: there is none. */
const sli_splitter *sli_splitter_find(const char *name);

#endif

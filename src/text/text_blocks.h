/* Reading a text file, or a range of its bytes, in blocks that end where the text may be cut, so
 * that a text may be larger than memory. */
#ifndef SLI_TEXT_TEXT_BLOCKS_H
#define SLI_TEXT_TEXT_BLOCKS_H

#include "sluice/app/text.h"

typedef struct sli_text_blocks {
    const char *path;     /* borrowed */
    int descriptor;       /* -1: closed */
    uint64_t size;        /* of the file */
    uint64_t offset, end; /* of what is read next, and of the text; may be changed before that */
    char *block;          /* [bytes] what is read and not handed out */
    size_t bytes, room;
    size_t uncut; /* of the block: no place to cut up to there */
} sli_text_blocks;

enum { SLI_TEXT_BLOCK_BYTES = 1 << 22 };

/* The text is the whole file. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_FORMAT. To be closed only
 * after SL_OK; closing again does nothing. */
sl_status sli_text_blocks_open(const char *path, sli_text_blocks *out);
void sli_text_blocks_close(sli_text_blocks *text);

/* Where the first line begins that begins at or behind a byte of the file; the file's end where
 * there is none. Errors: SL_ERR_IO. */
sl_status sli_text_blocks_find_line(const sli_text_blocks *text, uint64_t from, uint64_t *out);

/* Reads about so many bytes, or as many as it takes to find a place to cut. *block [*bytes],
 * malloc'ed, is a part of the text that can be encoded apart; NULL and 0: the text has ended.
 * Errors: SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_text_blocks_next(sli_text_blocks *text, const sl_vocab *vocab, uint64_t block_bytes,
                               char **block, size_t *bytes);

/* Whether that block is the text's last. */
bool sli_text_blocks_is_last(const sli_text_blocks *text);

#endif

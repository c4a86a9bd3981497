/* Files of token ids, mapped into memory: of any size, and one copy for all processes of a host. */
#ifndef SLI_TEXT_TOKEN_FILE_H
#define SLI_TEXT_TOKEN_FILE_H

#include "sluice/app/text.h"

#define SLI_TOKEN_FILE_END ".bin" /* of a token file's name */

/* The header of llm.c's files. */
enum {
    SLI_TOKENS_HEADER_BYTES = 1024,
    SLI_TOKENS_UINT16_MAGIC = 20240520,
    SLI_TOKENS_UINT16_VERSION = 1,
    SLI_TOKENS_UINT32_MAGIC = 20240801,
    SLI_TOKENS_UINT32_VERSION = 7
};

typedef struct sli_token_file {
    char *path;
    const uint8_t *bytes; /* of the whole file */
    size_t size;
    const uint8_t *tokens; /* [count] of `width` bytes each, little-endian */
    int64_t count;
    int width;
} sli_token_file;

/* Opens llm.c's files (uint16 of version 1, uint32 of version 7), Megatron's, which have an .idx of
 * the same name beside them, and where `type` says what they hold nanoGPT's, without a header.
 * Errors: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_MEMORY; SL_ERR_FORMAT for another version, a length
 * that the header or the .idx contradicts, and a file without tokens; SL_ERR_INVALID where the type
 * must be named. To be cleared only after SL_OK. */
sl_status sli_token_file_open(const char *path, sl_token_type type, sli_token_file *out);
void sli_token_file_clear(sli_token_file *file); /* leaves zeros */

/* Reads `count` ids from number `first` on, which must be in the file, and below `ntokens`. The
 * file's pages do not stay in this process's memory. Errors: SL_ERR_FORMAT for an id over the
 * vocabulary, with its position. */
sl_status sli_token_file_read(const sli_token_file *file, int64_t first, int64_t count,
                              int64_t ntokens, int32_t *ids);

/* The name of the file that comes after this one in a stream: after NAME.bin NAME_000001.bin, after
 * NAME_000001.bin NAME_000002.bin. *out is malloc'ed; NULL: none comes after it. Errors:
 * SL_ERR_MEMORY. */
sl_status sli_token_file_next(const char *path, char **out);

#endif

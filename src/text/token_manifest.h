/* What token files were made of: a manifest beside them, NAME.manifest.json.
 *
 *   {"sluice_token_files": 1,
 *    "tokenizer": {"checksum": "…", "tokens": 49152, "end": 0},
 *    "sources": [{"path": "text/a.txt", "bytes": 12, "checksum": "…"}, …],
 *    "files": [{"name": "train.bin", "tokens": 5, "checksum": "…"}, …],
 *    "tokens": 5, "invalid_bytes": 0}
 *
 * Checksums are XXH3's 128 bits: of a text's bytes; of a file's tokens, which stand behind its
 * header; of all of a tokenizer that decides the ids of a text. */
#ifndef SLI_TEXT_TOKEN_MANIFEST_H
#define SLI_TEXT_TOKEN_MANIFEST_H

#include "text/token_file.h"

#include <jansson.h>

typedef struct sli_manifest {
    char *path;
    json_t *json; /* NULL: there is none */
} sli_manifest;

void sli_manifest_clear(sli_manifest *manifest); /* leaves zeros */

/* The path of the manifest of the token file `path`, and those that follow it; malloc'ed. */
sl_status sli_manifest_path(const char *path, char **out);

/* Reads a manifest, or a record of the same form. `out` owns the path. Errors: SL_ERR_FORMAT for a
 * file that is none, SL_ERR_IO, SL_ERR_MEMORY; to be cleared also then. */
sl_status sli_manifest_read(char *path, sli_manifest *out);

/* Writes such a file whole. */
sl_status sli_manifest_write(const char *path, const json_t *manifest);

/* The members of a manifest, malloc'ed as jansson's values are. Errors: SL_ERR_MEMORY. */
sl_status sli_manifest_tokenizer(const sl_vocab *vocab, json_t **out);

/* Checks a file that is read, the first of a stream or the next one, against the manifest beside
 * it, or that of a file before it, which is then `current`. Without a vocabulary its tokenizer is
 * not compared. Errors: SL_ERR_INVALID for tokens of another tokenizer, SL_ERR_FORMAT for a file
 * that the manifest does not describe; those of reading a manifest. */
sl_status sli_manifest_check(const sli_token_file *file, const sl_vocab *vocab,
                             sli_manifest *current);

/* The entry of "files" whose name is the last component of `path`; NULL: there is none. */
const json_t *sli_manifest_find_file(const json_t *manifest, const char *path);

/* *out: whether all files that it lists stand beside `path`, with their tokens: their checksums are
 * compared. Errors: SL_ERR_MEMORY. */
sl_status sli_manifest_has_files(const json_t *manifest, const char *path, bool *out);

/* Removes from there those files that it lists and that have their tokens. Errors: SL_ERR_IO,
 * SL_ERR_MEMORY. */
sl_status sli_manifest_remove_files(const json_t *manifest, const char *path);

/* Removes what it lists and `kept`, of the same form, does not, from the directory of `path`. */
sl_status sli_manifest_remove_others(const json_t *manifest, const json_t *kept, const char *path);

#endif

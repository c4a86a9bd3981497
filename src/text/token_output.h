/* The token files that a text becomes, in llm.c's form, and their manifest. They appear under their
 * names when all are whole, the manifest last. Until then a record beside them, .NAME.resume, says
 * what there is under their temporary names, so that another process can go on.
 *
 * The record is a manifest of what is written so far. The last of its sources has the bytes that
 * are in the tokens and, if that is not all of it, "unfinished", and the files and counts "before"
 * it; its files have "temporary". */
#ifndef SLI_TEXT_TOKEN_OUTPUT_H
#define SLI_TEXT_TOKEN_OUTPUT_H

#include "core/checksum.h"
#include "core/claim.h"
#include "core/replace.h"
#include "text/token_manifest.h"

typedef struct sli_output_file {
    char *path;
    sli_replace_file *file; /* NULL: it has its name already */
    sli_checksum *sum;      /* of its tokens */
    int64_t tokens;
} sli_output_file;

typedef struct sli_token_output {
    char *path;         /* of the first file */
    sli_manifest older; /* of what stood there */
    char *record;       /* its path */
    sli_claim *claim;   /* no other process writes them */
    json_t *tokenizer;  /* as sli_manifest_tokenizer has it */
    json_t *sources;    /* an array, which the caller fills */
    json_t *before;     /* files and counts when the last source began, if it is unfinished */
    json_t *kept; /* of tokens that a run keeps: a further member of the manifest; NULL: none */
    int width;    /* bytes of a token */
    int64_t file_tokens;           /* most of a file */
    int64_t tokens, invalid_bytes; /* of all; the caller counts the latter */
    bool unfinished;               /* the last source is */
    bool resumed;                  /* a record was found */
    bool recorded;                 /* there is one */
    bool has_begun_naming;         /* its files get their names, and some may have them */
    sli_output_file *files;        /* [count] */
    size_t count, room;
} sli_token_output;

/* Begins anew, or with `resume` where the record says, if there is one: with its sources and
 * counts. Errors: SL_ERR_CONFLICT where another process writes these files; SL_ERR_INVALID for a
 * record of another tokenizer, and where the file that would follow is none of an older output;
 * SL_ERR_FORMAT where another file has the manifest's name, or the record does not describe the
 * files; those of replacing a file. To be closed only after SL_OK. */
sl_status sli_token_output_open(const char *path, const sl_vocab *vocab, int64_t file_tokens,
                                bool resume, sli_token_output *out);

/* Adds tokens, and begins the next file where one is full. Errors: SL_ERR_INVALID where that is no
 * file of an older output; those of writing. */
sl_status sli_token_output_add(sli_token_output *output, const int32_t *ids, int64_t count);

/* Whether so many more tokens would fit: the names of the files that they need are free, or those
 * of an older output. Errors: SL_ERR_INVALID, SL_ERR_UNSUPPORTED where no file can follow one of
 * this name, SL_ERR_MEMORY. */
sl_status sli_token_output_check_names(const sli_token_output *output, uint64_t tokens);

/* The path of the record of this first file, malloc'ed. */
sl_status sli_token_output_record_path(const char *path, char **out);

/* Records what is written. */
sl_status sli_token_output_record(sli_token_output *output);

/* A text begins that will be recorded unfinished; the call that drops it records what was written
 * before it, where it is recorded. The output is then only to be closed. */
sl_status sli_token_output_begin_text(sli_token_output *output);
sl_status sli_token_output_drop_text(sli_token_output *output);

/* Gives the files their names, in place of older ones, and removes the record. */
sl_status sli_token_output_commit(sli_token_output *output);

/* Frees all, and leaves zeros. With `keep_work`, or where commit failed between two names, what is
 * recorded stays, so that another process can go on; else what is not committed is removed, and the
 * record. */
void sli_token_output_close(sli_token_output *output, bool keep_work);

#endif

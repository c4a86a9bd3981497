/* Rows as they lie in memory, or in token files. */
#ifndef SLI_TEXT_ROWS_H
#define SLI_TEXT_ROWS_H

#include "core/large_array.h"
#include "text/token_file.h"

enum { SLI_IGNORED_TARGET = -100 };
enum { SLI_ROW_BEGINS, SLI_ROW_IDS, SLI_ROW_TARGETS, SLI_ROW_NUMBERS, SLI_ROW_ARRAYS };

struct sl_rows {
    int64_t count, longest;
    int32_t largest; /* id */
    bool has_targets;
    int64_t *begins;        /* [count + 1] the tokens of row i are those from begins[i] on */
    int32_t *ids, *targets; /* [begins[count]] */
    int32_t *numbers; /* [begins[count]] of packed rows: a token's in its document, from 0 on; NULL:
                         each row is one */
    sli_large_array arrays[SLI_ROW_ARRAYS]; /* which these are, unless a file has them: */
    void *map;                              /* [map_bytes]; NULL: there is no such file */
    uint64_t map_bytes;
    /* Of token files, where the arrays above are NULL: */
    int64_t length, tokens,
        ntokens;           /* of a row (0: there are no files), of all, of the vocabulary */
    sli_token_file *files; /* [file_count] */
    size_t file_count, files_room;
};

/* The files that begin with this one. Fills rows that are zeros. (token_stream.c) */
sl_status sli_token_rows_open(const char *path, const sl_rows_options *options, sl_rows *rows);

/* Makes room for so many rows and tokens in all, with numbers too if they are packed. Errors: those
 * of sli_large_array_reserve. */
sl_status sli_rows_reserve(sl_rows *rows, int64_t count, int64_t tokens, bool packed);

/* Gives back the room behind the last row: there will be no more. */
void sli_rows_finish(sl_rows *rows);

/* The tokens of a row, and how many of its targets are not ignored. */
int64_t sli_rows_length(const sl_rows *rows, int64_t row);
int64_t sli_rows_targets(const sl_rows *rows, int64_t row);
int64_t sli_rows_tokens(const sl_rows *rows); /* of all */

/* Copies a row's ids or targets [sli_rows_length]. Errors: SL_ERR_FORMAT for an id of a file that
 * is over the vocabulary. */
sl_status sli_rows_copy(const sl_rows *rows, int64_t row, bool targets, int32_t *to);

/* Puts several rows that are no token files, each a document, into one of at most `length` tokens,
 * as many as fit; a longer one is cut. Targets stay as they are: none is lost, and none is that of
 * another document. Which ones share a row depends on their lengths alone. Errors: SL_ERR_MEMORY.
 * (pack.c) */
sl_status sli_rows_pack(const sl_rows *rows, int64_t length, sl_rows **out);

/* Adds the tokens of packed rows and the squares of their documents' lengths. (pack.c) */
void sli_rows_count_documents(const sl_rows *rows, double *tokens, double *squares);

/* What tells these rows from others. */
void sli_rows_describe(const sl_rows *rows, char *text, size_t bytes);

#endif

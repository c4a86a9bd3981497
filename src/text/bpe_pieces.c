/* Counting the pieces of text files, which a BPE is trained on. */
#include "text/bpe_train.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/line_reader.h"
#include "text/tokens.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <unistr.h>

sl_status sli_pieces_init(sli_pieces *pieces)
{
    *pieces = (sli_pieces){.counts = NULL};
    SL_TRY(sli_token_table_init(&pieces->table));
    pieces->table.any_bytes = true;
    return SL_OK;
}

void sli_pieces_free(sli_pieces *pieces)
{
    sli_token_table_free(&pieces->table);
    free(pieces->counts);
    *pieces = (sli_pieces){.counts = NULL};
}

static sl_status add_piece(sli_pieces *pieces, const uint8_t *text, size_t bytes)
{
    int32_t number, before = pieces->table.count;
    SL_TRY(sli_token_table_add(&pieces->table, (const char *)text, bytes, &number));
    if (number == before) {
        SL_TRY(sli_array_reserve(&pieces->counts, &pieces->room, (size_t)before + 1,
                                 sizeof *pieces->counts, INT32_MAX, "different words"));
        pieces->counts[number] = 0;
    }
    pieces->counts[number]++;
    return SL_OK;
}

static sl_status add_pieces(sli_pieces *pieces, const sli_splitter *split, const uint8_t *at,
                            const uint8_t *end)
{
    for (const uint8_t *next; at < end; at = next) {
        next = split->next(at, end);
        SL_TRY(add_piece(pieces, at, (size_t)(next - at)));
    }
    return SL_OK;
}

static sl_status add_line(sli_pieces *pieces, const sli_splitter *split, const uint8_t *line,
                          size_t bytes, int64_t *invalid)
{
    uint8_t *repaired = NULL, *composed = NULL;
    sl_status status;
    if (u8_check(line, bytes)) {
        SL_TRY_OR_FAIL(sli_text_repair(line, line + bytes, &repaired, &bytes, invalid));
        line = repaired;
    }
    if (split->composes) {
        SL_TRY_OR_FAIL(sli_text_compose(line, line + bytes, &composed, &bytes));
        line = composed;
    }
    status = add_pieces(pieces, split, line, line + bytes);
fail:
    free(repaired);
    free(composed);
    return status;
}

/* Of a file's lines. */
typedef struct line_counts {
    size_t bytes;
    int64_t invalid, controls;
} line_counts;

static sl_status add_lines(sli_pieces *pieces, const sli_splitter *split, sli_line_reader *reader,
                           line_counts *counts)
{
    const char *line;
    size_t bytes;
    for (;;) {
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            return SL_OK;
        bytes += sli_line_reader_has_end(reader);
        counts->bytes += bytes;
        for (size_t i = 0; i < bytes; i++)
            counts->controls += sli_is_control((uint8_t)line[i]);
        SL_TRY(add_line(pieces, split, (const uint8_t *)line, bytes, &counts->invalid));
    }
}

sl_status sli_pieces_count(sli_pieces *pieces, const sli_splitter *split, const char *path,
                           int64_t *invalid)
{
    sli_line_reader *reader;
    line_counts counts = {0};
    SL_TRY(sli_line_reader_open(path, &reader));
    sl_status status = add_lines(pieces, split, reader, &counts);
    sli_line_reader_close(&reader);
    *invalid = counts.invalid;
    SL_TRY(status);
    if (counts.bytes == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", path);
    return sli_check_is_text(path, counts.bytes, counts.invalid, counts.controls);
}

/* Any bytes as a file of rows of ids: it must end in one sentence, or in rows that hang together.
 */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"

#include "text/bpe.h"
#include "text/bpe_texts.h"
#include "text/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TOKENS = 1000, POSITIONS = 64 };

static void check_rows(const sl_rows *rows)
{
    int64_t longest = 0;
    demand(rows->count > 0 && rows->begins[0] == 0, "rows");
    for (int64_t row = 0; row < rows->count; row++) {
        int64_t begin = rows->begins[row], length = rows->begins[row + 1] - begin;
        demand(length > 0 && length <= POSITIONS, "a row's length");
        longest = length > longest ? length : longest;
        for (int64_t i = begin; i < begin + length; i++) {
            demand(rows->ids[i] >= 0 && rows->ids[i] <= rows->largest, "an id");
            demand(rows->targets[i] == -100 ||
                       (rows->targets[i] >= 0 && rows->targets[i] <= rows->largest),
                   "a target");
        }
        demand(rows->targets[begin + length - 1] == -100, "the last target");
    }
    demand(rows->longest == longest && rows->largest < TOKENS, "the largest");
}

/* Of the 256 bytes, for lines of text. */
static sl_vocab *create_vocab(void)
{
    static char text[BPE_TEXT_BYTES];
    sli_bpe *bpe;
    sl_vocab *vocab;
    const sli_named_text ranks = {"ranks", text, write_ranks(text, "")};
    demand(sli_bpe_parse_ranks(&ranks, sli_splitter_find("gpt2"), &bpe) == SL_OK, "a tokenizer");
    demand(sli_vocab_of_bpe(bpe, &vocab) == SL_OK, "a vocabulary");
    return vocab;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    sl_rows *rows;
    sl_vocab *vocab = create_vocab();
    const sl_rows_options options = {.ntokens = TOKENS,
                                     .positions = POSITIONS,
                                     .vocab = vocab,
                                     .no_mask_prompt = bytes % 2 == 0};
    int file = memfd_create("rows.jsonl", 0);
    demand(file >= 0 && write(file, data, bytes) == (ssize_t)bytes, "a file");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    sl_status status = sl_rows_read(path, &options, &rows);
    demand(status == SL_OK || status == SL_ERR_FORMAT || status == SL_ERR_NOT_FOUND,
           "refused for its format");
    demand((status == SL_OK) == (rows != NULL), "NULL after an error");
    if (rows)
        check_rows(rows);
    sl_rows_destroy(&rows);
    sl_vocab_destroy(&vocab);
    close(file);
    return 0;
}

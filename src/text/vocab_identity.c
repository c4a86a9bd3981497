/* What tells a tokenizer from others: all that decides the ids of a text. */
#include "core/checksum.h"
#include "core/error.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

static void add_number(sli_checksum *sum, int64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)number >> 8 * i);
    sli_checksum_add(sum, bytes, sizeof bytes);
}

static void add_bytes(sli_checksum *sum, const char *bytes, size_t count)
{
    add_number(sum, (int64_t)count);
    sli_checksum_add(sum, bytes, count);
}

static void add_tokens(sli_checksum *sum, const sl_vocab *vocab)
{
    add_number(sum, sl_vocab_size(vocab));
    for (int32_t id = 0; id < sl_vocab_size(vocab); id++) {
        sl_token token = sl_vocab_token(vocab, id);
        add_bytes(sum, token.text, token.bytes);
    }
}

/* Their order counts, not their ranks, which another form of the same tokenizer numbers otherwise.
 */
static sl_status add_merges(sli_checksum *sum, const sli_bpe *bpe)
{
    sli_merge *sorted = sli_bpe_sorted_merges(bpe);
    if (!sorted)
        return sli_no_memory("a tokenizer's checksum", "%zu merges", bpe->merge_count);
    for (size_t i = 0; i < bpe->merge_count; i++)
        add_number(sum, (int64_t)sorted[i].left << 32 | sorted[i].right);
    free(sorted);
    return SL_OK;
}

static void add_added(sli_checksum *sum, const sli_added_tokens *added)
{
    add_number(sum, (int64_t)added->prefix);
    for (size_t i = 0; i < added->count; i++) {
        const sli_added_token *token = &added->all[i];
        add_number(sum, token->id);
        add_number(sum, token->special | token->single_word << 1 | token->lstrip << 2 |
                            token->rstrip << 3 | token->normalized << 4);
        add_bytes(sum, token->content.text, token->content.bytes);
    }
}

static sl_status add_bpe(sli_checksum *sum, const sli_bpe *bpe)
{
    add_bytes(sum, bpe->split->name, strlen(bpe->split->name));
    add_number(sum, bpe->split->composes | bpe->of_characters << 1 | bpe->strips << 2 |
                        bpe->all_whole << 3 | (int)bpe->prefix << 4);
    add_number(sum, bpe->unknown);
    add_added(sum, &bpe->added);
    return add_merges(sum, bpe);
}

sl_status sl_vocab_checksum(const sl_vocab *vocab, char *text)
{
    sli_checksum *sum;
    SL_TRY(sli_checksum_create(&sum));
    add_tokens(sum, vocab);
    sl_status status = vocab->bpe ? add_bpe(sum, vocab->bpe) : SL_OK;
    sli_checksum_text(sum, text);
    sli_checksum_destroy(&sum);
    return status;
}

const char *sl_vocab_settings_checksum(const sl_vocab *vocab, char *text)
{
    const char *settings = vocab->settings ? vocab->settings : "";
    return sli_checksum_of(settings, strlen(settings), text);
}

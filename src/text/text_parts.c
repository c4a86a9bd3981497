/* A text may be cut where every pattern ends a piece, in the part as in the whole text: behind a
 * line end before a letter, with at most a blank between them. Without the blank the line end must
 * stand alone behind a character that is seen: of more white space GPT-2's pattern leaves the last
 * to itself, but takes it all at the end of a text. One of SentencePiece's kind may be cut between
 * a word and a space, if no token reaches across. */
#include "text/text_parts.h"

#include "core/error.h"
#include "core/threads.h"
#include "text/bpe.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_seen(char character)
{
    return character > ' ' && character < 0x7F;
}

static bool may_cut_words(const char *text, size_t place, size_t bytes)
{
    return place < bytes && text[place] == ' ' && is_seen(text[place - 1]);
}

static bool may_cut_lines(const char *text, size_t place, size_t bytes)
{
    if (place < 2 || place + 1 >= bytes || text[place - 1] != '\n')
        return false;
    bool is_blank = text[place] == ' ';
    return isalpha((unsigned char)text[place + is_blank]) &&
           (unsigned char)text[place + is_blank] < 0x80 && (is_blank || is_seen(text[place - 2]));
}

size_t sli_text_last_cut(const sl_vocab *vocab, const char *text, size_t first, size_t bytes)
{
    const sli_bpe *bpe = vocab->bpe;
    if (bpe && (bpe->added.has_ordinary[0] || bpe->added.has_ordinary[1]))
        return 0; /* an added token that is found in any text may reach across */
    if (bpe && bpe->split == &sli_nowhere)
        return 0;
    bool (*may_cut)(const char *, size_t, size_t) =
        bpe && bpe->of_characters ? may_cut_words : may_cut_lines;
    for (size_t place = bytes; place > first && place > 1; place--)
        if (may_cut(text, place, bytes))
            return place;
    return 0;
}

/* ---- Side by side ------------------------------------------------------------------------- */

typedef struct text_part {
    const char *text;
    size_t bytes;
    sl_tokens tokens;
    int64_t first; /* where its ids stand among all */
    sli_error_copy error;
} text_part;

typedef struct part_job {
    const sli_bpe *bpe;
    bool continues;
    text_part *parts;
    int64_t count;
    int32_t *ids; /* of all */
} part_job;

static void cut(const sl_vocab *vocab, const char *text, size_t bytes, size_t part_bytes,
                part_job *job)
{
    size_t begin = 0;
    for (size_t first = 0; begin < bytes; first += part_bytes) {
        bool is_last = bytes - first <= part_bytes;
        size_t end = is_last ? bytes : sli_text_last_cut(vocab, text, first, first + part_bytes);
        if (end <= begin)
            continue;
        job->parts[job->count++] = (text_part){.text = text + begin, .bytes = end - begin};
        begin = end;
    }
}

static void encode_part(void *argument, int64_t index, int thread)
{
    (void)thread;
    const part_job *job = argument;
    text_part *part = &job->parts[index];
    sl_status status = sli_bpe_encode(job->bpe, part->text, part->bytes, false,
                                      job->continues || index > 0, &part->tokens);
    (void)sli_error_save(&part->error, status);
}

static void copy_part(void *argument, int64_t index, int thread)
{
    (void)thread;
    const part_job *job = argument;
    text_part *part = &job->parts[index];
    if (part->tokens.count > 0)
        memcpy(job->ids + part->first, part->tokens.ids,
               (size_t)part->tokens.count * sizeof *job->ids);
    sl_tokens_free(&part->tokens);
}

/* Adds the parts' numbers to those of the whole, and makes room for their ids. */
static sl_status count_parts(part_job *job, sl_tokens *out)
{
    for (int64_t i = 0; i < job->count; i++) {
        text_part *part = &job->parts[i];
        if (part->error.status != SL_OK)
            return sli_error_restore(&part->error);
        part->first = out->count;
        out->count += part->tokens.count;
        out->line_count += part->tokens.line_count;
        out->invalid_bytes += part->tokens.invalid_bytes;
    }
    job->ids = out->ids = malloc(((size_t)out->count + 1) * sizeof *out->ids);
    return out->ids ? SL_OK : sli_no_memory(NULL, "%lld ids of tokens", (long long)out->count);
}

static sl_status encode_side_by_side(int threads, part_job *job, sl_tokens *out)
{
    sli_pool *pool;
    SL_TRY(sli_pool_create(&(sli_pool_options){.threads = threads}, &pool));
    sli_pool_run(pool, job->count, encode_part, job);
    sl_status status = count_parts(job, out);
    if (status == SL_OK)
        sli_pool_run(pool, job->count, copy_part, job);
    sli_pool_destroy(&pool);
    return status;
}

sl_status sli_text_encode_parts(const sl_vocab *vocab, const char *text, size_t bytes,
                                bool continues, size_t part_bytes, int threads, sl_tokens *out)
{
    if (threads == 1 || bytes <= part_bytes)
        return sli_bpe_encode(vocab->bpe, text, bytes, false, continues, out);
    *out = (sl_tokens){0};
    part_job job = {.bpe = vocab->bpe,
                    .continues = continues,
                    .parts = calloc(bytes / part_bytes + 1, sizeof *job.parts)};
    if (!job.parts)
        return sli_no_memory(NULL, "the parts of a text of %zu bytes", bytes);
    cut(vocab, text, bytes, part_bytes, &job);
    sl_status status = encode_side_by_side(threads, &job, out);
    for (int64_t i = 0; i < job.count; i++)
        sl_tokens_free(&job.parts[i].tokens);
    free(job.parts);
    if (status != SL_OK)
        sl_tokens_free(out);
    return status;
}

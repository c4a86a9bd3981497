/* A text may be cut where every pattern ends a piece, in the part as in the whole text:
 *
 *     word| word      before a blank alone between what is no white space
 *     word\n|word     behind a line end that stands alone so, before a letter
 *
 * No pattern has a blank behind something else in a piece, and none a line end before a letter. Of
 * more white space GPT-2's pattern leaves the last character to what follows, but takes it all at
 * the end of a text. A text of SentencePiece's kind may be cut between a word and a space, if no
 * token reaches across. Added tokens that any text means must have no white space, and take none.
 */
#include "text/text_parts.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "text/bpe.h"
#include "text/tokens.h"

#include <stdlib.h>
#include <string.h>
#include <unistr.h>

enum { WRITTEN_SPACE = 0x2581, MOST_CHARACTER_BYTES = 4 };

static bool is_seen(ucs4_t code)
{
    return code < 0x80 ? code > ' ' && code < 0x7F
                       : !sli_is_white_space(code) && code != WRITTEN_SPACE;
}

/* The character at the place; a blank where there is none. */
static ucs4_t character_at(const char *text, size_t place, size_t bytes)
{
    ucs4_t code = ' ';
    if (place < bytes && u8_mbtoucr(&code, (const uint8_t *)text + place, bytes - place) <= 0)
        code = ' ';
    return code;
}

/* Whether a character that is seen ends before the place. */
static bool ends_seen(const char *text, size_t place)
{
    ucs4_t code;
    size_t begin = place - 1;
    while (begin > 0 && place - begin < MOST_CHARACTER_BYTES && (text[begin] & 0xC0) == 0x80)
        begin--;
    return u8_mbtoucr(&code, (const uint8_t *)text + begin, place - begin) ==
               (int)(place - begin) &&
           is_seen(code);
}

static bool may_cut_words(const char *text, size_t place, size_t bytes)
{
    return place < bytes && text[place] == ' ' && ends_seen(text, place);
}

static bool may_cut_pieces(const char *text, size_t place, size_t bytes)
{
    if (place < bytes && text[place] == ' ')
        return is_seen(character_at(text, place + 1, bytes)) && ends_seen(text, place);
    return place >= 2 && text[place - 1] == '\n' &&
           sli_is_letter(character_at(text, place, bytes)) && ends_seen(text, place - 1);
}

size_t sli_text_last_cut(const sl_vocab *vocab, const char *text, size_t first, size_t bytes)
{
    const sli_bpe *bpe = vocab->bpe;
    if (bpe && (bpe->added.reaches || bpe->split == &sli_nowhere))
        return 0;
    bool of_characters = bpe && bpe->of_characters;
    if (of_characters && (bpe->added.has_ordinary[0] || bpe->added.has_ordinary[1]))
        return 0; /* what is behind one gets a space, but not at the beginning of a part */
    bool (*may_cut)(const char *, size_t, size_t) = of_characters ? may_cut_words : may_cut_pieces;
    for (size_t place = bytes; place > first && place > 0; place--)
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

struct sli_text_encoder {
    const sl_vocab *vocab;
    size_t part_bytes;
    int threads;
    sli_pool *pool;             /* NULL until a text has parts */
    sli_bpe_encoder **encoders; /* [threads]; NULL until a thread has a part */
    /* Of a text: */
    bool continues;
    text_part *parts; /* [count] */
    int64_t count;
    size_t room;
    int32_t *ids; /* of all */
};

sl_status sli_text_encoder_create(const sl_vocab *vocab, size_t part_bytes, int threads,
                                  sli_text_encoder **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "an encoder of texts");
    **out = (sli_text_encoder){.vocab = vocab, .part_bytes = part_bytes, .threads = threads};
    (*out)->encoders = calloc((size_t)threads, sizeof(void *));
    if ((*out)->encoders)
        return SL_OK;
    sli_text_encoder_destroy(out);
    return sli_no_memory(NULL, "the encoders of %d threads", threads);
}

void sli_text_encoder_destroy(sli_text_encoder **encoder)
{
    if (!*encoder)
        return;
    sli_pool_destroy(&(*encoder)->pool);
    for (int i = 0; i < (*encoder)->threads && (*encoder)->encoders; i++)
        sli_bpe_encoder_destroy(&(*encoder)->encoders[i]);
    free((*encoder)->encoders);
    free((*encoder)->parts);
    free(*encoder);
    *encoder = NULL;
}

static sl_status cut(sli_text_encoder *job, const char *text, size_t bytes)
{
    size_t begin = 0;
    job->count = 0;
    SL_TRY(sli_array_reserve(&job->parts, &job->room, bytes / job->part_bytes + 1,
                             sizeof *job->parts, SIZE_MAX / 256, "parts of a text"));
    for (size_t first = 0; begin < bytes; first += job->part_bytes) {
        bool is_last = bytes - first <= job->part_bytes;
        size_t end =
            is_last ? bytes : sli_text_last_cut(job->vocab, text, first, first + job->part_bytes);
        if (end <= begin)
            continue;
        job->parts[job->count++] = (text_part){.text = text + begin, .bytes = end - begin};
        begin = end;
    }
    return SL_OK;
}

static sl_status encode(sli_text_encoder *job, int thread, const char *text, size_t bytes,
                        bool continues, sl_tokens *out)
{
    sli_bpe_encoder **encoder = &job->encoders[thread];
    *out = (sl_tokens){0};
    if (!*encoder)
        SL_TRY(sli_bpe_encoder_create(job->vocab->bpe, encoder));
    return sli_bpe_encoder_run(*encoder, text, bytes, false, continues, out);
}

static void encode_part(void *argument, int64_t index, int thread)
{
    sli_text_encoder *job = argument;
    text_part *part = &job->parts[index];
    sl_status status =
        encode(job, thread, part->text, part->bytes, job->continues || index > 0, &part->tokens);
    (void)sli_error_save(&part->error, status);
}

static void copy_part(void *argument, int64_t index, int thread)
{
    (void)thread;
    const sli_text_encoder *job = argument;
    text_part *part = &job->parts[index];
    if (part->tokens.count > 0)
        memcpy(job->ids + part->first, part->tokens.ids,
               (size_t)part->tokens.count * sizeof *job->ids);
    sl_tokens_free(&part->tokens);
}

/* Adds the parts' numbers to those of the whole, and makes room for their ids. */
static sl_status count_parts(sli_text_encoder *job, sl_tokens *out)
{
    for (int64_t i = 0; i < job->count; i++) {
        text_part *part = &job->parts[i];
        if (part->error.status != SL_OK)
            return sli_error_restore(&part->error);
        part->first = out->count;
        out->count += part->tokens.count;
        bool ends_in_line = i + 1 < job->count && part->text[part->bytes - 1] != '\n';
        out->line_count += part->tokens.line_count - ends_in_line;
        out->invalid_bytes += part->tokens.invalid_bytes;
    }
    job->ids = out->ids = malloc(((size_t)out->count + 1) * sizeof *out->ids);
    return out->ids ? SL_OK : sli_no_memory(NULL, "%lld ids of tokens", (long long)out->count);
}

static sl_status encode_side_by_side(sli_text_encoder *job, sl_tokens *out)
{
    if (!job->pool)
        SL_TRY(sli_pool_create(&(sli_pool_options){.threads = job->threads}, &job->pool));
    sli_pool_run(job->pool, job->count, encode_part, job);
    sl_status status;
    SLI_TRY_OR_FAIL(count_parts(job, out));
    sli_pool_run(job->pool, job->count, copy_part, job);
fail:
    for (int64_t i = 0; i < job->count; i++)
        sl_tokens_free(&job->parts[i].tokens);
    return status;
}

sl_status sli_text_encoder_run(sli_text_encoder *encoder, const char *text, size_t bytes,
                               bool continues, sl_tokens *out)
{
    *out = (sl_tokens){0};
    if (!encoder->vocab->bpe)
        return sli_tokens_encode_text(encoder->vocab, text, bytes, continues, out);
    encoder->count = 0;
    encoder->continues = continues;
    if (encoder->threads > 1 && bytes > encoder->part_bytes)
        SL_TRY(cut(encoder, text, bytes));
    if (encoder->count <= 1)
        return encode(encoder, 0, text, bytes, continues, out);
    sl_status status = encode_side_by_side(encoder, out);
    if (status != SL_OK)
        sl_tokens_free(out);
    return status;
}

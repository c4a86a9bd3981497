/* Texts side by side. Those that are not in memory go by in batches, of which one is read and one
 * is written while the threads encode the one between them:
 *
 *     pass      0    1    2    3    4
 *     read      a    b    c
 *     encode         a    b    c
 *     write               a    b    c
 *
 * All of a pass is one job of the pool, in which writing and reading are a task each, and each part
 * of the batch between them is one.
 */
#include "text/text_encoder.h"

#include "core/memory.h"
#include "core/threads.h"
#include "text/bpe.h"
#include "text/text_parts.h"
#include "text/tokens.h"

#include <stdlib.h>
#include <string.h>

typedef struct part_list {
    sli_text_part *parts; /* [count] */
    int64_t count;
    size_t room;
} part_list;

struct sli_text_encoder {
    const sl_vocab *vocab;
    size_t part_bytes;
    int threads;
    sli_pool *pool;             /* NULL until a text has several parts, or texts go by */
    sli_bpe_encoder **encoders; /* [threads]; NULL until a thread has a part */
};

int sli_text_encoder_threads(int most, uint64_t bytes)
{
    uint64_t useful = bytes / SLI_TEXT_PART_BYTES + 2;
    return useful < (uint64_t)most ? (int)useful : most;
}

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
    free(*encoder);
    *encoder = NULL;
}

static sl_status start_threads(sli_text_encoder *encoder)
{
    return encoder->pool
               ? SL_OK
               : sli_pool_create(&(sli_pool_options){.threads = encoder->threads}, &encoder->pool);
}

/* Adds the parts of a text, or of a part of one. */
static sl_status add_parts_of(const sli_text_encoder *encoder, const sli_text_part *whole,
                              part_list *list)
{
    size_t begin = 0, part_bytes = encoder->part_bytes;
    SL_TRY(sli_array_reserve(&list->parts, &list->room,
                             (size_t)list->count + whole->bytes / part_bytes + 1,
                             sizeof *list->parts, SIZE_MAX / 2048, "parts of a text"));
    for (size_t first = 0; begin < whole->bytes; first += part_bytes) {
        bool is_last = whole->bytes - first <= part_bytes;
        size_t end =
            is_last ? whole->bytes
                    : sli_text_last_cut(encoder->vocab, whole->text, first, first + part_bytes);
        if (end <= begin)
            continue;
        list->parts[list->count++] = (sli_text_part){.text = whole->text + begin,
                                                     .bytes = end - begin,
                                                     .number = whole->number,
                                                     .begins = whole->begins && begin == 0,
                                                     .ends = whole->ends && is_last};
        begin = end;
    }
    return SL_OK;
}

static sl_status encode_text(sli_text_encoder *encoder, int thread, const char *text, size_t bytes,
                             bool continues, sl_tokens *out)
{
    sli_bpe_encoder **own = &encoder->encoders[thread];
    *out = (sl_tokens){0};
    if (!encoder->vocab->bpe)
        return sli_tokens_encode_text(encoder->vocab, text, bytes, continues, out);
    if (!*own)
        SL_TRY(sli_bpe_encoder_create(encoder->vocab->bpe, own));
    return sli_bpe_encoder_run(*own, text, bytes, false, continues, out);
}

/* A line that goes on in the next part is counted there. */
static void encode_part(sli_text_encoder *encoder, sli_text_part *part, int thread)
{
    sl_status status =
        encode_text(encoder, thread, part->text, part->bytes, !part->begins, &part->tokens);
    part->tokens.line_count -= !part->ends && part->text[part->bytes - 1] != '\n';
    (void)sli_error_save(&part->error, status);
}

/* ---- A text in memory --------------------------------------------------------------------- */

typedef struct whole_text {
    sli_text_encoder *encoder;
    part_list list;
    int32_t *ids; /* of all parts */
} whole_text;

static void encode_listed_part(void *argument, int64_t index, int thread)
{
    whole_text *whole = argument;
    encode_part(whole->encoder, &whole->list.parts[index], thread);
}

static void copy_listed_ids(void *argument, int64_t index, int thread)
{
    (void)thread;
    const whole_text *whole = argument;
    sli_text_part *part = &whole->list.parts[index];
    if (part->tokens.count > 0)
        memcpy(whole->ids + part->first, part->tokens.ids,
               (size_t)part->tokens.count * sizeof *whole->ids);
    sl_tokens_free(&part->tokens);
}

/* Adds the parts' numbers to those of the whole, and makes room for their ids. */
static sl_status count_tokens(whole_text *whole, sl_tokens *out)
{
    for (int64_t i = 0; i < whole->list.count; i++) {
        sli_text_part *part = &whole->list.parts[i];
        SL_TRY(sli_error_restore(&part->error));
        part->first = out->count;
        out->count += part->tokens.count;
        out->line_count += part->tokens.line_count;
        out->invalid_bytes += part->tokens.invalid_bytes;
    }
    whole->ids = out->ids = malloc(((size_t)out->count + 1) * sizeof *out->ids);
    return out->ids ? SL_OK : sli_no_memory(NULL, "%lld ids of tokens", (long long)out->count);
}

static sl_status encode_side_by_side(whole_text *whole, sl_tokens *out)
{
    const part_list *list = &whole->list;
    sli_text_encoder *encoder = whole->encoder;
    SL_TRY(start_threads(encoder));
    sli_pool_run(encoder->pool, list->count, encode_listed_part, whole);
    sl_status status;
    SL_TRY_OR_FAIL(count_tokens(whole, out));
    sli_pool_run(encoder->pool, list->count, copy_listed_ids, whole);
fail:
    for (int64_t i = 0; i < list->count; i++)
        sl_tokens_free(&list->parts[i].tokens);
    if (status != SL_OK)
        sl_tokens_free(out);
    return status;
}

sl_status sli_text_encoder_run(sli_text_encoder *encoder, const char *text, size_t bytes,
                               bool continues, sl_tokens *out)
{
    const sli_text_part all = {.text = text, .bytes = bytes, .begins = !continues, .ends = true};
    whole_text whole = {.encoder = encoder};
    sl_status status;
    *out = (sl_tokens){0};
    if (encoder->vocab->bpe && encoder->threads > 1 && bytes > encoder->part_bytes)
        SL_TRY_OR_FAIL(add_parts_of(encoder, &all, &whole.list));
    status = whole.list.count > 1 ? encode_side_by_side(&whole, out)
                                  : encode_text(encoder, 0, text, bytes, continues, out);
fail:
    free(whole.list.parts);
    return status;
}

/* ---- Texts that are not in memory --------------------------------------------------------- */

/* Blocks that are read together, and their parts. */
typedef struct batch {
    char **texts; /* [text_count] */
    size_t text_count, texts_room;
    part_list list;
    sli_error_copy error; /* of reading what is behind them */
} batch;

typedef struct stream_pass {
    sli_text_encoder *encoder;
    const sli_text_stream *stream;
    batch *read, *encoded, *written;
    bool has_ended; /* reading */
    sli_error_copy error;
} stream_pass;

static sl_status read_block(stream_pass *pass, batch *into, size_t *bytes)
{
    sli_text_block block = {0};
    SL_TRY(sli_array_reserve(&into->texts, &into->texts_room, into->text_count + 1,
                             sizeof *into->texts, SIZE_MAX / 16, "blocks of texts"));
    SL_TRY(pass->stream->read(pass->stream->context, &block));
    pass->has_ended = !block.text;
    if (!block.text)
        return SL_OK;
    into->texts[into->text_count++] = block.text;
    *bytes += block.bytes;
    return add_parts_of(pass->encoder,
                        &(sli_text_part){.text = block.text,
                                         .bytes = block.bytes,
                                         .number = block.number,
                                         .begins = block.begins,
                                         .ends = block.ends},
                        &into->list);
}

static void read_batch(stream_pass *pass, batch *into)
{
    size_t bytes = 0;
    sl_status status = SL_OK;
    while (status == SL_OK && !pass->has_ended && bytes < pass->stream->batch_bytes)
        status = read_block(pass, into, &bytes);
    pass->has_ended = pass->has_ended || status != SL_OK;
    (void)sli_error_save(&into->error, status);
}

static sl_status write_batch(const stream_pass *pass, const batch *from)
{
    for (int64_t i = 0; i < from->list.count; i++) {
        sli_text_part *part = &from->list.parts[i];
        SL_TRY(sli_error_restore(&part->error));
        SL_TRY(pass->stream->write(pass->stream->context, part));
        sl_tokens_free(&part->tokens);
    }
    return sli_error_restore(&from->error);
}

static void run_task(void *argument, int64_t index, int thread)
{
    enum { WRITE, READ, TASKS };
    stream_pass *pass = argument;
    if (index == WRITE)
        (void)sli_error_save(&pass->error, write_batch(pass, pass->written));
    else if (index == READ)
        read_batch(pass, pass->read);
    else
        encode_part(pass->encoder, &pass->encoded->list.parts[index - TASKS], thread);
}

/* Leaves it ready to be read into. */
static void empty_batch(batch *used)
{
    for (int64_t i = 0; i < used->list.count; i++)
        sl_tokens_free(&used->list.parts[i].tokens);
    for (size_t i = 0; i < used->text_count; i++)
        free(used->texts[i]);
    used->text_count = 0;
    used->list.count = 0;
    used->error.status = SL_OK;
}

static bool is_empty(const batch *looked_at)
{
    return looked_at->text_count == 0 && looked_at->error.status == SL_OK;
}

sl_status sli_text_encoder_stream(sli_text_encoder *encoder, const sli_text_stream *stream)
{
    enum { STEPS = 3 };
    batch batches[STEPS] = {{0}};
    stream_pass pass = {.encoder = encoder, .stream = stream};
    SL_TRY(start_threads(encoder));
    int first = 0;
    do {
        pass.read = &batches[first];
        pass.written = &batches[(first + 1) % STEPS];
        pass.encoded = &batches[(first + 2) % STEPS];
        sli_pool_run(encoder->pool, pass.encoded->list.count + 2, run_task, &pass);
        empty_batch(pass.written);
        first = (first + 1) % STEPS;
    } while (pass.error.status == SL_OK &&
             !(pass.has_ended && is_empty(pass.read) && is_empty(pass.encoded)));
    for (int i = 0; i < STEPS; i++) {
        empty_batch(&batches[i]);
        free(batches[i].texts);
        free(batches[i].list.parts);
    }
    return sli_error_restore(&pass.error);
}

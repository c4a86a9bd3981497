/* Texts that are encoded while others are read and written: the order in which they go by, and what
 * an error leaves. */
#include "text/text_encoder.h"

#include "support/check.h"
#include "text/drawn_texts.h"
#include "text/text_parts.h"

enum { TEXTS = 12, PIECES = 60, MOST_BYTES = 8 * PIECES * TEXTS, NEVER = -1 };

/* Texts in memory, one behind the other, and what has come of them. */
typedef struct texts {
    const sl_vocab *vocab;
    char bytes[MOST_BYTES];
    size_t begins[TEXTS + 1];
    size_t block_bytes;
    int64_t read_fails, write_fails; /* at this text; NEVER */
    /* Of what is read: */
    int64_t reading;
    size_t read;
    /* Of what is written: */
    size_t written;
    int64_t text;
    size_t most_ahead; /* of what is written, in bytes */
    sl_tokens sums[TEXTS];
    int32_t ids[MOST_BYTES];
    int64_t count;
} texts;

static void draw_texts(texts *drawn, const sl_vocab *vocab, unsigned *seed)
{
    *drawn = (texts){.vocab = vocab, .read_fails = NEVER, .write_fails = NEVER};
    for (int i = 0; i < TEXTS; i++) {
        size_t begin = drawn->begins[i];
        drawn->bytes[begin] = 'a';
        drawn->begins[i + 1] =
            begin + 1 + draw_text(seed, drawn->bytes + begin + 1, test_draw(seed, 0, PIECES - 1));
    }
    drawn->block_bytes = (size_t)test_draw(seed, 1, 200);
}

static sl_status read_block(void *context, sli_text_block *out)
{
    texts *source = context;
    if (source->reading == source->read_fails)
        return sl_error(SL_ERR_IO, "text %d cannot be read", (int)source->reading);
    if (source->reading == TEXTS)
        return SL_OK;
    const char *text = source->bytes + source->read;
    size_t left = source->begins[source->reading + 1] - source->read, bytes = 0;
    for (size_t seen = source->block_bytes; bytes == 0 && seen < left; seen *= 2)
        bytes = sli_text_last_cut(source->vocab, text, 0, seen);
    *out = (sli_text_block){.bytes = bytes ? bytes : left,
                            .number = source->reading,
                            .begins = source->read == source->begins[source->reading],
                            .ends = bytes == 0};
    out->text = malloc(out->bytes);
    assert_non_null(out->text);
    memcpy(out->text, text, out->bytes);
    source->read += out->bytes;
    source->reading += out->ends;
    return SL_OK;
}

/* Each part is what follows the one before. */
static sl_status write_part(void *context, const sli_text_part *part)
{
    texts *to = context;
    assert_int_equal(part->number, to->text);
    assert_int_equal(part->begins, to->written == to->begins[part->number]);
    assert_memory_equal(part->text, to->bytes + to->written, part->bytes);
    if (part->number == to->write_fails)
        return sl_error(SL_ERR_IO, "text %d cannot be written", (int)part->number);
    if (part->tokens.count > 0)
        memcpy(to->ids + to->count, part->tokens.ids, (size_t)part->tokens.count * sizeof *to->ids);
    to->count += part->tokens.count;
    to->sums[part->number].count += part->tokens.count;
    to->sums[part->number].line_count += part->tokens.line_count;
    to->sums[part->number].invalid_bytes += part->tokens.invalid_bytes;
    to->written += part->bytes;
    assert_int_equal(part->ends, to->written == to->begins[part->number + 1]);
    to->text += part->ends;
    return SL_OK;
}

/* Where one thread does all. */
static sl_status measure_part(void *context, const sli_text_part *part)
{
    texts *to = context;
    size_t ahead = to->read - to->written;
    to->most_ahead = ahead > to->most_ahead ? ahead : to->most_ahead;
    return write_part(context, part);
}

static sl_status run(texts *through, size_t part_bytes, size_t batch_bytes, int threads)
{
    sli_text_encoder *encoder;
    check_ok(sli_text_encoder_create(through->vocab, part_bytes, threads, &encoder));
    const sli_text_stream stream = {.read = read_block,
                                    .write = threads == 1 ? measure_part : write_part,
                                    .context = through,
                                    .batch_bytes = batch_bytes};
    sl_status status = sli_text_encoder_stream(encoder, &stream);
    sli_text_encoder_destroy(&encoder);
    return status;
}

/* The first texts have become what each of them is, encoded alone. */
static void check_written(const texts *through, int64_t count)
{
    const int32_t *ids = through->ids;
    assert_int_equal(through->text, count);
    assert_int_equal(through->written, through->begins[count]);
    for (int64_t i = 0; i < count; i++) {
        sl_tokens alone;
        const sl_tokens *sum = &through->sums[i];
        size_t begin = through->begins[i];
        check_ok(sl_tokens_encode(through->vocab, through->bytes + begin,
                                  through->begins[i + 1] - begin, false, &alone));
        assert_int_equal(sum->count, alone.count);
        assert_int_equal(sum->line_count, alone.line_count);
        assert_int_equal(sum->invalid_bytes, alone.invalid_bytes);
        assert_memory_equal(ids, alone.ids, (size_t)alone.count * sizeof *ids);
        ids += alone.count;
        sl_tokens_free(&alone);
    }
}

static void texts_go_by_in_their_order(void **state)
{
    static texts drawn;
    unsigned seed = test_seed(1);
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    for (int round = 0; round < 20; round++)
        for (int threads = 1; threads <= 3; threads += 2) {
            draw_texts(&drawn, vocab, &seed);
            check_ok(run(&drawn, (size_t)test_draw(&seed, 1, 100),
                         (size_t)test_draw(&seed, 1, 1000), threads));
            check_written(&drawn, TEXTS);
        }
}

/* Two batches are read when the first is written, and no more than these two are in memory. */
static void texts_are_read_ahead_but_not_far(void **state)
{
    enum { BATCH = 100 };
    static texts drawn;
    unsigned seed = test_seed(2);
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    draw_texts(&drawn, vocab, &seed);
    drawn.block_bytes = 40;
    check_ok(run(&drawn, 20, BATCH, 1));
    check_written(&drawn, TEXTS);
    assert_in_range(drawn.most_ahead, 2 * BATCH, 2 * BATCH + 2 * 8 * PIECES);
}

static void what_comes_before_an_error_is_written(void **state)
{
    static texts drawn;
    unsigned seed = test_seed(3);
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    for (int round = 0; round < 20; round++) {
        int at = test_draw(&seed, 0, TEXTS - 1);
        bool in_reading = round % 2;
        draw_texts(&drawn, vocab, &seed);
        *(in_reading ? &drawn.read_fails : &drawn.write_fails) = at;
        char expected[64];
        snprintf(expected, sizeof expected, "text %d cannot be %s", at,
                 in_reading ? "read" : "written");
        check_error(run(&drawn, 50, (size_t)test_draw(&seed, 1, 1000), 3), SL_ERR_IO, expected);
        check_written(&drawn, at);
    }
}

static void small_texts_have_few_threads(void **state)
{
    (void)state;
    assert_int_equal(sli_text_encoder_threads(64, 10), 2);
    assert_int_equal(sli_text_encoder_threads(1, 10), 1);
    assert_int_equal(sli_text_encoder_threads(64, 4 * SLI_TEXT_PART_BYTES), 6);
    assert_int_equal(sli_text_encoder_threads(64, UINT64_MAX), 64);
}

int text_encoder_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_go_by_in_their_order),
        cmocka_unit_test(texts_are_read_ahead_but_not_far),
        cmocka_unit_test(what_comes_before_an_error_is_written),
        cmocka_unit_test(small_texts_have_few_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

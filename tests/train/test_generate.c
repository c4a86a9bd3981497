#include "core/philox.h"
#include "sluice/app/inference.h"
#include "support/modules.h"
#include "train/small_run.h"

#include <math.h>

enum { ADDED = 40, PROMPT = 3, ROOM = PROMPT + ADDED };
static const int32_t prompt[PROMPT] = {4, 2, 7};

/* Generates behind the prompt; ids[] has room for ROOM. */
static void generate(test_pipe *pipe, const sl_generate_options *options, int32_t *ids)
{
    int64_t length = PROMPT;
    memcpy(ids, prompt, sizeof prompt);
    check_ok(sl_generate(pipe->pipe, options, ids, &length, ADDED));
    assert_int_equal(length, ROOM);
    assert_memory_equal(ids, prompt, sizeof prompt);
}

/* The logits after ids[0 … length - 1] of one forward pass, malloc'ed. */
static float *logits_after(test_pipe *pipe, const int32_t *ids, int64_t length)
{
    float *all, *last = malloc(SMALL_TOKENS * sizeof *last);
    int64_t ntokens;
    check_ok(sl_compute_logits(pipe->pipe, ids, 1, length, &all, &ntokens));
    assert_int_equal(ntokens, SMALL_TOKENS);
    memcpy(last, all + (length - 1) * SMALL_TOKENS, SMALL_TOKENS * sizeof *last);
    free(all);
    return last;
}

static void greedy_token_is_the_most_probable_one(void **state)
{
    enum { CONTEXT = 5 };
    int32_t ids[ROOM];
    SCOPED(test_pipe) pipe = open_small_model(2, 3);
    generate(&pipe, &(sl_generate_options){.context = CONTEXT}, ids);
    for (int64_t at = PROMPT; at < ROOM; at++) {
        int64_t seen = at < CONTEXT ? at : CONTEXT;
        FREED float *logits = logits_after(&pipe, ids + at - seen, seen);
        for (int id = SL_VOCAB_UNKNOWN + 1; id < SMALL_TOKENS; id++)
            assert_true(logits[ids[at]] >= logits[id]);
        assert_int_not_equal(ids[at], SL_VOCAB_UNKNOWN);
    }
}

static void one_candidate_is_greedy(void **state)
{
    int32_t greedy[ROOM], one[ROOM], cold[ROOM];
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    generate(&pipe, &(sl_generate_options){0}, greedy);
    generate(&pipe, &(sl_generate_options){.temperature = 5, .top_k = 1, .seed = 9}, one);
    generate(&pipe, &(sl_generate_options){.temperature = 1e-6, .seed = 9}, cold);
    assert_memory_equal(greedy, one, sizeof greedy);
    assert_memory_equal(greedy, cold, sizeof greedy);
}

static void text_ends_behind_its_end(void **state)
{
    int32_t all[ROOM], ids[ROOM];
    int64_t length = PROMPT, first = PROMPT;
    SCOPED(test_pipe) pipe = open_small_model(2, 3);
    generate(&pipe, &(sl_generate_options){.temperature = 2, .seed = 5}, all);
    const int32_t end = all[PROMPT + 5];
    while (all[first] != end)
        first++;
    memcpy(ids, prompt, sizeof prompt);
    check_ok(
        sl_generate(pipe.pipe,
                    &(sl_generate_options){.temperature = 2, .seed = 5, .stops = true, .end = end},
                    ids, &length, ADDED));
    assert_int_equal(length, first + 1);
    assert_memory_equal(ids, all, (size_t)length * sizeof *ids);
}

static void seed_decides_the_text_in_every_pipe(void **state)
{
    int32_t one[ROOM], other[ROOM];
    sl_generate_options options = {.temperature = 2, .seed = 5};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    generate(&pipe, &options, one);
    options.seed = 6;
    generate(&pipe, &options, other);
    assert_memory_not_equal(one, other, sizeof one);
    test_pipe_destroy(&pipe);
    pipe = open_small_model(3, 3);
    options.seed = 5;
    generate(&pipe, &options, other);
    assert_memory_equal(one, other, sizeof one);
}

/* The small model, after which a module runs that cannot use a cache and changes nothing. */
static test_pipe open_without_cache(probe *identity, uint64_t seed)
{
    sl_module *model, *last = probe_module(identity);
    check_ok(sl_transformer_lm_create(&small_model_options, &model));
    check_ok(sl_sequential_append(&model, SL_OK, &last));
    return open_pipe(model, NULL, (sl_pipe_options){.stages = 1, .seed = seed}, 1, 1);
}

static void check_text_without_cache(const sl_generate_options *options, int stages)
{
    int32_t with[ROOM], without[ROOM];
    probe identity = {0};
    test_pipe pipe = open_small_model(stages, 3);
    generate(&pipe, options, with);
    test_pipe_destroy(&pipe);
    pipe = open_without_cache(&identity, 3);
    generate(&pipe, options, without);
    test_pipe_destroy(&pipe);
    assert_memory_equal(with, without, sizeof with);
}

/* Also where the text grows longer than the context, and where the prompt is longer. */
static void cache_does_not_change_the_text(void **state)
{
    for (uint64_t seed = 1; seed <= 5; seed++)
        check_text_without_cache(
            &(sl_generate_options){.context = 100, .temperature = 1, .seed = seed}, 2);
    check_text_without_cache(&(sl_generate_options){.context = 10, .temperature = 1}, 1);
    check_text_without_cache(&(sl_generate_options){.context = 2}, 3);
    check_text_without_cache(&(sl_generate_options){.context = ROOM - 1}, 1);
}

/* Positions that a model runs over. */
static sl_status count_positions(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    *(int64_t *)sl_module_state(module) += sl_tensor_shape(in)->size[1];
    return sl_tensor_alias(in, out);
}

static sl_status give_gradient_on(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static bool always(const sl_module *module)
{
    return true;
}

static void keep_counter(void *state)
{
}

static int64_t positions_of_a_text(int64_t context)
{
    static const sl_module_ops ops = {.type = "Counter",
                                      .forward = count_positions,
                                      .backward = give_gradient_on,
                                      .can_continue = always,
                                      .destroy_state = keep_counter};
    int32_t ids[ROOM];
    int64_t positions = 0;
    sl_module *model, *last;
    check_ok(sl_transformer_lm_create(&small_model_options, &model));
    check_ok(sl_module_create(&ops, &positions, &last));
    check_ok(sl_sequential_append(&model, SL_OK, &last));
    SCOPED(test_pipe) pipe =
        open_pipe(model, NULL, (sl_pipe_options){.stages = 1, .seed = 3}, 1, 1);
    generate(&pipe, &(sl_generate_options){.context = context}, ids);
    return positions;
}

/* The prompt once, and then each new token alone; behind the context, all of it for each token. */
static void each_token_costs_one_position_within_the_context(void **state)
{
    assert_int_equal(positions_of_a_text(100), ROOM - 1);
    assert_int_equal(positions_of_a_text(10), 10 + (ROOM - 11) * 10);
}

/* The probabilities of the next token, by the definitions of the rules. */
static void expect_probabilities(const sl_generate_options *options, float *logits,
                                 double expected[SMALL_TOKENS])
{
    double total = 0, kept = 0;
    for (int i = 0; options->repetition_penalty > 0 && i < PROMPT; i++)
        logits[prompt[i]] *= (float)(logits[prompt[i]] < 0 ? options->repetition_penalty
                                                           : 1 / options->repetition_penalty);
    for (int id = 1; id < SMALL_TOKENS; id++) {
        int above = 0;
        for (int k = 1; k < SMALL_TOKENS; k++)
            above += logits[k] > logits[id];
        expected[id] = options->top_k == 0 || above < options->top_k
                           ? exp(logits[id] / options->temperature)
                           : 0;
        total += expected[id];
    }
    double without[SMALL_TOKENS];
    memcpy(without, expected, sizeof without);
    for (int id = 1; id < SMALL_TOKENS; id++) {
        double before = 0, best = 0;
        for (int k = 1; k < SMALL_TOKENS; k++) {
            before += without[k] > without[id] ? without[k] / total : 0;
            best = fmax(best, without[k]);
        }
        if ((options->top_p > 0 && before >= options->top_p) || without[id] < options->min_p * best)
            expected[id] = 0;
        kept += expected[id];
    }
    for (int id = 1; id < SMALL_TOKENS; id++)
        expected[id] /= kept;
}

/* The frequencies of many draws after the prompt, against their probabilities. */
static void check_draws(sl_generate_options options)
{
    enum { DRAWS = 4000 };
    int counts[SMALL_TOKENS] = {0};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t ids[PROMPT + 1];
        int64_t length = PROMPT;
        options.seed = (uint64_t)draw;
        memcpy(ids, prompt, sizeof prompt);
        check_ok(sl_generate(pipe.pipe, &options, ids, &length, 1));
        counts[ids[PROMPT]]++;
    }
    FREED float *logits = logits_after(&pipe, prompt, PROMPT);
    double expected[SMALL_TOKENS] = {0};
    expect_probabilities(&options, logits, expected);
    for (int id = 0; id < SMALL_TOKENS; id++) {
        double mean = DRAWS * expected[id];
        if (expected[id] == 0)
            assert_int_equal(counts[id], 0);
        else if (fabs(counts[id] - mean) > 4.5 * sqrt(mean)) /* seeds are fixed: no luck involved */
            fail_msg("token %d was drawn %d times, expected %.1f", id, counts[id], mean);
    }
}

/* Of two candidates. A synthetic text of the same seed has numbers of another domain. */
static void draws_have_numbers_of_their_own(void **state)
{
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    FREED float *logits = logits_after(&pipe, prompt, PROMPT);
    sl_generate_options options = {.temperature = 1, .top_k = 2};
    double probability[SMALL_TOKENS] = {0};
    int best = 1;
    expect_probabilities(&options, logits, probability);
    for (int id = 1; id < SMALL_TOKENS; id++)
        best = probability[id] > probability[best] ? id : best;
    for (; options.seed < 50; options.seed++) {
        uint32_t words[4] = {PROMPT};
        int32_t ids[PROMPT + 1];
        int64_t length = PROMPT;
        memcpy(ids, prompt, sizeof prompt);
        check_ok(sl_generate(pipe.pipe, &options, ids, &length, 1));
        sli_philox(sli_philox_key_make(options.seed, SLI_RANDOM_GENERATE), words);
        assert_int_equal(ids[PROMPT] == best, sli_uniform_from_bits(words[0]) < probability[best]);
    }
}

static void draws_follow_the_models_distribution(void **state)
{
    skip_if_sanitized();
    check_draws((sl_generate_options){.temperature = 1});
    check_draws((sl_generate_options){.temperature = 0.3});
    check_draws((sl_generate_options){.temperature = 1, .top_k = 4});
    check_draws((sl_generate_options){.temperature = 1, .top_p = 0.5});
    check_draws((sl_generate_options){.temperature = 0.5, .min_p = 0.3});
    check_draws((sl_generate_options){.temperature = 1, .repetition_penalty = 1.8});
    check_draws((sl_generate_options){
        .temperature = 0.8, .top_k = 8, .top_p = 0.7, .min_p = 0.1, .repetition_penalty = 0.5});
}

/* With a penalty this large no greedy token comes again while another is left. */
static void penalty_keeps_the_text_from_repeating(void **state)
{
    int32_t ids[ROOM];
    bool seen[SMALL_TOKENS] = {false};
    SCOPED(test_pipe) pipe = open_small_model(2, 3);
    generate(&pipe, &(sl_generate_options){.repetition_penalty = 1e30, .never = -1}, ids);
    FREED float *logits = logits_after(&pipe, prompt, PROMPT);
    for (int i = 0; i < PROMPT; i++)
        seen[prompt[i]] = true;
    for (int i = PROMPT; i < 8; i++) {
        assert_false(seen[ids[i]]);
        seen[ids[i]] = true;
    }
}

enum { TEXTS = 7, LONGEST = 9 };

typedef struct endings {
    int64_t order[TEXTS], count;
} endings;

static sl_status note_end(void *context, int64_t text)
{
    endings *all = context;
    all->order[all->count++] = text;
    return SL_OK;
}

/* Texts that begin with 1 … LONGEST ids, alone and `rows` at once. */
static void check_texts(test_pipe *alone, test_pipe *pipe, sl_generate_options options,
                        int64_t rows)
{
    int32_t expected[TEXTS][LONGEST + ADDED], ids[TEXTS][LONGEST + ADDED];
    int64_t lengths[TEXTS];
    sl_text texts[TEXTS];
    endings ended = {.count = 0};
    for (int text = 0; text < TEXTS; text++) {
        lengths[text] = 1 + (text * 5) % LONGEST;
        for (int64_t i = 0; i < lengths[text]; i++)
            ids[text][i] = expected[text][i] = (int32_t)((text * 3 + i * i) % SMALL_TOKENS);
        texts[text] = (sl_text){ids[text], lengths[text]};
        check_ok(sl_generate(alone->pipe, &options, expected[text], &lengths[text], ADDED));
    }
    options.rows = rows;
    options.ended = note_end;
    options.context_of_added = &ended;
    check_ok(sl_generate_texts(pipe->pipe, &options, texts, TEXTS, ADDED));
    bool seen[TEXTS] = {false};
    for (int text = 0; text < TEXTS; text++) {
        assert_int_equal(texts[text].length, lengths[text]);
        assert_memory_equal(ids[text], expected[text], (size_t)lengths[text] * sizeof *ids[text]);
        assert_false(seen[ended.order[text]]);
        seen[ended.order[text]] = true;
    }
    assert_int_equal(ended.count, TEXTS);
}

/* Within the context and beyond it, where some end early, and in pipes of three micro-batches. */
static void texts_at_once_are_those_of_each_alone(void **state)
{
    SCOPED(test_pipe) alone = open_small_model(1, 3);
    for (int stages = 1; stages <= 3; stages++) {
        SCOPED(test_pipe) pipe = open_small_model(stages, 3);
        for (int64_t rows = 1; rows <= TEXTS + 1; rows += 2) {
            check_texts(&alone, &pipe, (sl_generate_options){.context = 100}, rows);
            check_texts(&alone, &pipe,
                        (sl_generate_options){.context = 100, .temperature = 2, .seed = 7}, rows);
            check_texts(&alone, &pipe,
                        (sl_generate_options){.context = 20,
                                              .temperature = 2,
                                              .repetition_penalty = 1.5,
                                              .stops = true,
                                              .end = 5},
                        rows);
        }
    }
}

static void texts_at_once_need_no_cache(void **state)
{
    probe identity = {0};
    SCOPED(test_pipe) alone = open_small_model(1, 3);
    test_pipe without = open_without_cache(&identity, 3);
    check_texts(&alone, &without, (sl_generate_options){.context = 30, .temperature = 1}, 3);
    test_pipe_destroy(&without);
}

typedef struct told {
    int32_t ids[ADDED];
    int count;
} told;

static sl_status note_token(void *context, int64_t text, int32_t id)
{
    told *all = context;
    all->ids[all->count++] = id;
    return SL_OK;
}

static void each_token_is_told_as_it_is_added(void **state)
{
    int32_t ids[ROOM];
    told all = {.count = 0};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    generate(&pipe, &(sl_generate_options){.added = note_token, .context_of_added = &all}, ids);
    assert_int_equal(all.count, ADDED);
    assert_memory_equal(all.ids, ids + PROMPT, sizeof all.ids);
}

typedef struct growing {
    sl_text *texts;
    int begun, ended;
    int most_tokens; /* of the first text before an error */
} growing;

static sl_status give_room(void *context, int64_t text)
{
    growing *all = context;
    sl_text *one = &all->texts[text];
    int32_t *ids = malloc(ROOM * sizeof *ids);
    memcpy(ids, one->ids, (size_t)one->length * sizeof *ids);
    one->ids = ids;
    all->begun++;
    return SL_OK;
}

static sl_status take_room(void *context, int64_t text)
{
    growing *all = context;
    free(all->texts[text].ids);
    all->texts[text].ids = NULL;
    all->ended++;
    assert_in_range(all->begun - all->ended, 0, 1);
    return SL_OK;
}

static sl_status count_token(void *context, int64_t text, int32_t id)
{
    growing *all = context;
    return --all->most_tokens >= 0 ? SL_OK : sl_error(SL_ERR_IO, "the disk is full");
}

/* Two at once, whose ids have only the prompt's room before they begin. */
static void text_gets_room_as_it_begins(void **state)
{
    int32_t ids[5][PROMPT];
    sl_text texts[5];
    growing all = {.texts = texts};
    for (int i = 0; i < 5; i++) {
        memcpy(ids[i], prompt, sizeof prompt);
        texts[i] = (sl_text){ids[i], PROMPT};
    }
    const sl_generate_options options = {.rows = 2,
                                         .begun = give_room,
                                         .ended = take_room,
                                         .context_of_added = &all};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    check_ok(sl_generate_texts(pipe.pipe, &options, texts, 5, ADDED));
    assert_int_equal(all.begun, 5);
    assert_int_equal(all.ended, 5);
}

static void error_of_who_is_told_ends_the_text(void **state)
{
    int32_t ids[ROOM];
    int64_t length = PROMPT;
    growing all = {.most_tokens = 4};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    memcpy(ids, prompt, sizeof prompt);
    check_error(sl_generate(pipe.pipe,
                            &(sl_generate_options){.added = count_token, .context_of_added = &all},
                            ids, &length, ADDED),
                SL_ERR_IO, "the disk is full");
    assert_int_equal(length, PROMPT + 5);
}

/* Of several the error says which. */
static void error_names_the_text(void **state)
{
    int32_t ids[2][ROOM] = {{4}, {SMALL_TOKENS}};
    sl_text texts[] = {{ids[0], 1}, {ids[1], 1}, {ids[0], 0}};
    const sl_generate_options options = {.context = 1, .rows = 1};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    check_error(sl_generate_texts(pipe.pipe, &options, texts, 3, 2), SL_ERR_INVALID,
                "text 3 of 3: sl_generate: the prompt must have at least one token");
    sl_tensor_f32(sl_parameter_value(find_parameter(&pipe, "4.decoder.bias")))[6] = NAN;
    check_error(sl_generate_texts(pipe.pipe, &options, texts, 2, 2), SL_ERR_NUMERIC,
                "text 1 of 2: ");
}

static void impossible_requests_are_refused(void **state)
{
    int32_t ids[ROOM] = {4};
    int64_t length = 0;
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){0}, ids, &length, 1), SL_ERR_INVALID,
                "the prompt must have at least one token");
    length = 1;
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){.temperature = NAN}, ids, &length, 1),
                SL_ERR_INVALID, "temperature must be a number from 0, got nan");
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){.top_p = 1.5}, ids, &length, 1),
                SL_ERR_INVALID, "top-p must be a number from 0 to 1, got 1.5");
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){.min_p = -1}, ids, &length, 1),
                SL_ERR_INVALID, "min-p must be a number from 0 to 1, got -1");
    static const double penalties[] = {INFINITY, NAN, -1, 1e-31, 1e31};
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++)
        check_error(sl_generate(pipe.pipe,
                                &(sl_generate_options){.repetition_penalty = penalties[i]}, ids,
                                &length, 1),
                    SL_ERR_INVALID, "repetition-penalty must be 0, or from 1e-30 to 1e+30, got ");
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){.top_k = -1}, ids, &length, 1),
                SL_ERR_INVALID, "must not be negative");
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){0}, ids, &length, -1), SL_ERR_INVALID,
                "must not be negative");
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){.rows = -1}, ids, &length, 1),
                SL_ERR_INVALID, "must not be negative");
    assert_int_equal(length, 1);
}

/* The model sees the last token alone, and the penalty all. */
static void prompt_of_another_vocabulary_is_refused(void **state)
{
    const sl_generate_options options = {.context = 1, .repetition_penalty = 2};
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    for (int above = 0; above < 2; above++) {
        int32_t ids[ROOM] = {4, above ? SMALL_TOKENS : -1, 4};
        int64_t length = 3;
        check_error(sl_generate(pipe.pipe, &options, ids, &length, 1), SL_ERR_INVALID,
                    ", number 2 of the prompt, is not in 0 .. ");
        assert_int_equal(length, 3);
    }
}

static void output_that_is_no_number_is_an_error(void **state)
{
    int32_t ids[ROOM] = {4};
    int64_t length = 1;
    SCOPED(test_pipe) pipe = open_small_model(1, 3);
    sl_tensor_f32(sl_parameter_value(find_parameter(&pipe, "4.decoder.bias")))[6] = NAN;
    check_error(sl_generate(pipe.pipe, &(sl_generate_options){0}, ids, &length, 1), SL_ERR_NUMERIC,
                "the model's output for token 6 is nan");
    assert_int_equal(length, 1);
}

int generate_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_token_is_the_most_probable_one),
        cmocka_unit_test(one_candidate_is_greedy),
        cmocka_unit_test(text_ends_behind_its_end),
        cmocka_unit_test(seed_decides_the_text_in_every_pipe),
        cmocka_unit_test(cache_does_not_change_the_text),
        cmocka_unit_test(each_token_costs_one_position_within_the_context),
        cmocka_unit_test(draws_have_numbers_of_their_own),
        cmocka_unit_test(draws_follow_the_models_distribution),
        cmocka_unit_test(penalty_keeps_the_text_from_repeating),
        cmocka_unit_test(texts_at_once_are_those_of_each_alone),
        cmocka_unit_test(texts_at_once_need_no_cache),
        cmocka_unit_test(each_token_is_told_as_it_is_added),
        cmocka_unit_test(text_gets_room_as_it_begins),
        cmocka_unit_test(error_of_who_is_told_ends_the_text),
        cmocka_unit_test(error_names_the_text),
        cmocka_unit_test(impossible_requests_are_refused),
        cmocka_unit_test(prompt_of_another_vocabulary_is_refused),
        cmocka_unit_test(output_that_is_no_number_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Runs whose vocabulary is split over the pipeline's ranks: numbers, memory, checkpoints. */
#define _GNU_SOURCE /* memmem */

#include "plans.h"
#include "small_run.h"

#include "sluice/checkpoint.h"

#include <math.h>

enum { RANKS = 4 };

static small_record *shared_record; /* of the first rank */
static sl_plan shared_plan;         /* of all ranks */

static sl_train_options split_options(scratch *dir)
{
    sl_train_options options = small_options(dir);
    options.model.nlayers = 8;
    options.split_vocabulary = true;
    return options;
}

static void run_has_the_same_bits_for_any_number_of_ranks(void **state)
{
    static small_record one, whole;
    sl_train_options options = split_options(*state);
    for (int mode = 0; mode < 4; mode += IS_SANITIZED ? 3 : 1) {
        options.model.tie = mode % 2;
        options.precision = mode / 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        double tolerance = mode / 2 ? 2e-2 : 1e-5;
        options.pipeline_ranks = options.replicas = 1;
        options.split_vocabulary = false;
        options.balance_kind = SL_BALANCE_LAYERS;
        check_ok(small_run(&options, &whole));
        options.split_vocabulary = true;
        check_ok(small_run(&options, &one));
        for (int i = 0; i < one.step_count; i++)
            assert_float_equal(one.steps[i].loss, whole.steps[i].loss,
                               tolerance * whole.steps[i].loss);
        for (options.pipeline_ranks = 2; options.pipeline_ranks <= RANKS;
             options.pipeline_ranks += 2)
            for (int i = 0; sl_schedule_names[i]; i++) {
                options.schedule = sl_schedule_names[i];
                options.balance_kind = i % 2 ? SL_BALANCE_AUTO : SL_BALANCE_LAYERS;
                check_same_run(&options, &one);
            }
        options.schedule = NULL;
    }
}

/* A rank of a run that is divided over a group. */
static sl_status run_rank(sl_group *group, void *arg)
{
    static small_record records[RANKS];
    int rank = sl_group_rank(group);
    sl_run_result result;
    const sl_train_options *options = arg;
    sl_reporter reporter = small_reporter(rank == 0 ? shared_record : &records[rank]);
    return run_as_rank(options, group, sl_group_size(group), &reporter, 1, &result);
}

/* From step `from` of the expected run on, and its evaluations from then. */
static void check_processes(sl_train_options *options, int processes, const small_record *expected,
                            int from)
{
    static small_record found;
    shared_record = &found;
    check_ok(sl_spawn(run_rank, options, processes, NULL));
    assert_int_equal(found.step_count, expected->step_count - from);
    for (int i = 0; i < found.step_count; i++)
        check_same_step(&found.steps[i], &expected->steps[from + i]);
    for (int i = 1; i <= found.eval_count; i++)
        assert_true(found.evals[found.eval_count - i].loss ==
                    expected->evals[expected->eval_count - i].loss);
}

static void frozen_bias_of_a_split_head_is_let_be_in_other_processes(void **state)
{
    static small_record one;
    sl_train_options options = split_options(*state);
    options.replicas = 1;
    options.model.freeze = "*.decoder.bias";
    check_ok(small_run(&options, &one));
    options.pipeline_ranks = 2;
    check_processes(&options, 2, &one, 0);
}

/* Parts of a bias begin anywhere among the groups of four that random numbers come in. */
static void ranks_that_own_their_words_have_the_same_bits(void **state)
{
    static small_record one;
    for (int mode = 0; mode < 4; mode++) {
        sl_train_options options = split_options(*state);
        options.optimizer.kind = SL_OPTIMIZER_ADAMW;
        options.optimizer.precision = mode % 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        options.optimizer.decay = SL_DECAY_MATRICES;
        options.model.tie = mode / 2;
        options.precision = options.optimizer.precision;
        options.lr.lr = 0.01;
        options.shards = 2;
        options.replicas = options.pipeline_ranks = 1;
        check_ok(small_run(&options, &one));
        options.pipeline_ranks = 4;
        check_processes(&options, 2, &one, 0);
        options.schedule = "zb-h1";
        check_processes(&options, 4, &one, 0);
        options.replicas = options.pipeline_ranks = 2;
        options.zero = mode % 2;
        check_processes(&options, 4, &one, 0);
        options.zero = !options.zero;
        options.schedule = "zb-v";
        check_processes(&options, 4, &one, 0);
    }
}

/* No file of the part has a segment of a tensor. */
static void check_model_is_whole(const char *directory)
{
    sl_checkpoint_reader *reader;
    char *newest, *best;
    check_ok(sl_train_find_checkpoints(directory, &best, &newest));
    check_ok(sl_checkpoint_open(newest, &reader));
    for (size_t i = 0; i < sl_checkpoint_file_count(reader); i++) {
        const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, i);
        char path[1024];
        if (!file->part || strcmp(file->part, "optimizer") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", newest, file->name);
        char *text = malloc(file->bytes + 1);
        assert_non_null(text);
        size_t length = read_file(path, text, file->bytes);
        assert_int_equal(length, file->bytes);
        assert_null(memmem(text, length, "sluice.segments", strlen("sluice.segments")));
        free(text);
    }
    sl_checkpoint_close(&reader);
    free(best);
    free(newest);
}

/* What processes save, one process goes on from, and the other way round; and a run begins from a
 * model that they have saved. */
static void check_resumes(scratch *dir, bool tie)
{
    static small_record whole, part;
    char directory[512], model[512];
    sl_train_options options = split_options(dir);
    snprintf(directory, sizeof directory, "%s",
             scratch_path(dir, tie ? "of-processes-tied" : "of-processes"));
    snprintf(model, sizeof model, "%s", scratch_path(dir, tie ? "model-tied" : "model"));
    options.model.tie = tie;
    options.optimizer.kind = SL_OPTIMIZER_ADAMW;
    options.lr.lr = 0.01;
    options.replicas = 1;
    options.epochs = 3;
    check_ok(small_run(&options, &whole));
    int each = whole.step_count / 3;
    options.checkpoints.directory = directory;
    options.pipeline_ranks = 4;
    options.epochs = 1;
    shared_record = &part;
    check_ok(sl_spawn(run_rank, &options, 2, NULL));
    check_model_is_whole(directory);
    options.checkpoints.resume = directory;
    options.pipeline_ranks = 2;
    options.epochs = 2;
    check_ok(small_run(&options, &part));
    for (int i = 0; i < part.step_count; i++)
        check_same_step(&part.steps[i], &whole.steps[each + i]);
    options.epochs = 3;
    options.save = model;
    check_processes(&options, 2, &whole, 2 * each);
    check_model_is_whole(directory);
    options.checkpoints = (sl_save_options){0};
    options.save = NULL;
    options.init = model;
    options.epochs = options.pipeline_ranks = 1;
    check_ok(small_run(&options, &part));
    options.pipeline_ranks = 4;
    check_processes(&options, 2, &part, 0);
}

static void run_resumes_in_other_processes(void **state)
{
    check_resumes(*state, false);
    check_resumes(*state, true);
}

/* As run_rank, where the first rank alone sees the directory of checkpoints. */
static sl_status run_rank_apart(sl_group *group, void *arg)
{
    char nowhere[512];
    sl_train_options options = *(const sl_train_options *)arg;
    snprintf(nowhere, sizeof nowhere, "%s/train.txt/below", options.data); /* nobody can create */
    if (sl_group_rank(group) > 0)
        options.checkpoints.directory = nowhere;
    return run_rank(group, &options);
}

/* Replicas of processes save, each with a directory of its own or all with one, before and after
 * the best step, and another layout goes on. */
static void replicas_of_processes_save_what_their_ranks_own(void **state)
{
    static small_record whole, part;
    scratch *dir = *state;
    for (int mode = 0; mode < 4; mode++) {
        char directory[512], name[32];
        sl_train_options options = split_options(dir);
        options.model.tie = mode == 1 || mode == 2;
        snprintf(name, sizeof name, "saved-%d", mode);
        snprintf(directory, sizeof directory, "%s", scratch_path(dir, name));
        options.optimizer.kind = SL_OPTIMIZER_ADAMW;
        options.optimizer.precision = mode % 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        options.lr.lr = 0.01;
        options.shards = options.replicas = options.pipeline_ranks = 2;
        options.eval_every = 1;
        options.epochs = 2;
        check_ok(small_run(&options, &whole));
        options.checkpoints.directory = directory;
        options.checkpoints.every_steps = 3;
        options.zero = mode % 2 == 0;
        options.epochs = 1;
        shared_record = &part;
        check_ok(sl_spawn(mode < 2 ? run_rank_apart : run_rank, &options, RANKS, NULL));
        check_model_is_whole(directory);
        options.checkpoints.resume = directory;
        options.epochs = options.replicas = 2;
        options.pipeline_ranks = mode < 2 ? 2 : 1;
        options.checkpoints.directory = NULL;
        check_processes(&options, options.replicas * options.pipeline_ranks, &whole,
                        whole.step_count / 2);
    }
}

/* The file has the whole head, whoever trained it; and a run keeps the option. */
static void run_resumes_with_other_ranks_and_not_without_the_option(void **state)
{
    static small_record whole, first, second;
    char directory[512];
    scratch *dir = *state;
    sl_train_options options = split_options(dir);
    snprintf(directory, sizeof directory, "%s", scratch_path(dir, "checkpoints"));
    options.epochs = 2;
    check_ok(small_run(&options, &whole));
    options.checkpoints.directory = directory;
    options.pipeline_ranks = 2;
    options.schedule = "1f1b";
    options.epochs = 1;
    check_ok(small_run(&options, &first));
    options.checkpoints.resume = directory;
    options.epochs = 2;
    options.split_vocabulary = false;
    check_error(small_run(&options, &second), SL_ERR_INVALID,
                "was made with split-vocabulary true, this run has");
    options.split_vocabulary = true;
    options.pipeline_ranks = RANKS;
    options.schedule = "zb-h1";
    check_ok(small_run(&options, &second));
    assert_int_equal(first.step_count + second.step_count, whole.step_count);
    for (int i = 0; i < second.step_count; i++)
        check_same_step(&second.steps[i], &whole.steps[first.step_count + i]);
}

/* Of each rank, of one device each. */
static void check_memory(const sl_train_options *options)
{
    static small_record record;
    sl_train_options sized = *options;
    sl_corpus *corpus;
    int64_t activations[SL_MAX_STAGES] = {0}, workspace[SL_MAX_STAGES] = {0}, least[SL_MAX_STAGES];
    check_ok(sl_corpus_load(options->data, NULL, &corpus));
    sized.model.ntokens = sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    sl_plan plan = plan_of_launch(&sized, NULL);
    for (int s = 0; s < plan.stages; s++) {
        int rank = plan.stage[s].rank;
        activations[rank] += plan.stage[s].activation_bytes;
        if (workspace[rank] < plan.stage[s].workspace_bytes)
            workspace[rank] = plan.stage[s].workspace_bytes;
        least[rank] = activations[rank] * 2 / 3; /* all targets may be of one part */
    }
    small_run_for_peaks(options, least, options->pipeline_ranks, &record);
    for (int rank = 0; rank < options->pipeline_ranks; rank++) {
        int64_t taken = (int64_t)record.peak_activations[rank],
                worked = (int64_t)record.memory[rank].peak_bytes[SL_MEMORY_WORKSPACE];
        if (taken > activations[rank] || taken < least[rank] || worked > workspace[rank] * 9 / 8)
            fail_msg("%s, %s, rank %d of %d: planned %d and %d bytes, taken %d and %d",
                     options->schedule, sl_precision_names[options->precision], rank,
                     options->pipeline_ranks, (int)activations[rank], (int)workspace[rank],
                     (int)taken, (int)worked);
    }
}

static void planned_memory_is_what_a_run_takes(void **state)
{
    skip_if_sanitized();
    sl_train_options options = split_options(*state);
    options.model.emsize = options.bptt = 32;
    options.batch_size = 16;
    options.chunks = 16;
    options.max_batches = 2;
    options.eval_max_batches = 1;
    options.recompute = SL_RECOMPUTE_NEVER;
    for (options.precision = SL_PRECISION_F32; options.precision <= SL_PRECISION_BF16;
         options.precision++)
        for (options.pipeline_ranks = 2; options.pipeline_ranks <= 8; options.pipeline_ranks *= 2)
            for (int i = 0; sl_schedule_names[i]; i++) {
                options.schedule = sl_schedule_names[i];
                if (options.pipeline_ranks * sl_schedule_virtual_stages(options.schedule) <=
                    options.model.nlayers)
                    check_memory(&options);
            }
}

static sl_train_options planned_options(void)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    options.model.ntokens = 1000;
    options.pipeline_ranks = 2;
    options.replicas = 1;
    options.split_vocabulary = true;
    return options;
}

/* The first rank has 512 of 1000 words, the last one the others, and a copy of all for evaluation,
 * in bf16 without values in f32 but the bias's. A tied head has its gradient beside the embedding's
 * rows; of these the first stage has as many as a batch has words. */
static void check_planned_head(const sl_train_options *options, int64_t biases)
{
    bool is_narrow = options->precision == SL_PRECISION_BF16, is_tied = options->model.tie;
    int64_t width = options->model.emsize, weight = 4 * width, word = weight + 4 * biases;
    int64_t values = word + (is_narrow ? 2 * width : 0),
            copies = (is_narrow ? 2 : 4) * width + 4 * biases;
    sl_plan here = plan_of_launch(options, NULL),
            apart = plan_of_launch(options, &(sl_train_launch){.ranks = 2});
    sl_stage_plan *first = here.stage, *last = &here.stage[1];
    first->parameter_bytes += 512 * values;
    first->gradient_bytes += 512 * word;
    first->optimizer_bytes += 512 * 2 * word;
    last->parameter_bytes += 1000 * copies - 512 * values;
    last->gradient_bytes -= 512 * word;
    last->optimizer_bytes -= 512 * 2 * word;
    if (is_tied) {
        int64_t embedding = weight + (is_narrow ? 2 * width : 0);
        int64_t words = here.micros * here.micro_rows * options->bptt; /* more than evaluated */
        first->parameter_bytes += words * weight - 1000 * embedding;
        first->gradient_bytes += (words + 512 - 1000) * weight;
        first->optimizer_bytes -= 1000 * 2 * weight;
        last->parameter_bytes += 1000 * embedding;
        last->gradient_bytes += 488 * weight;
        last->optimizer_bytes += 1000 * 2 * weight;
    }
    for (int s = 0; s < 2; s++) {
        assert_int_equal(apart.stage[s].parameter_bytes, here.stage[s].parameter_bytes);
        assert_int_equal(apart.stage[s].gradient_bytes, here.stage[s].gradient_bytes);
        assert_int_equal(apart.stage[s].optimizer_bytes, here.stage[s].optimizer_bytes);
    }
}

static void a_head_in_several_processes_is_planned_for(void **state)
{
    sl_train_options options = planned_options(), llama = options;
    llama.model.family = SL_FAMILY_LLAMA;
    llama.model.pre_norm = true;
    llama.model.dropout = 0;
    llama.model.decoder = (sl_decoder_options){
        .key_heads = llama.model.nhead,
        .head_width = llama.model.emsize / llama.model.nhead,
        .positions = llama.bptt,
        .norm_eps = 1e-5,
        .deviation = 0.02,
        .rotary = {.kind = SL_ROTARY_DEFAULT, .theta = 10000},
    };
    for (int mode = 0; mode < 4; mode++) {
        options.model.tie = llama.model.tie = mode % 2;
        options.precision = llama.precision = mode / 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        options.optimizer.kind = llama.optimizer.kind = SL_OPTIMIZER_ADAMW;
        check_planned_head(&options, 1);
        check_planned_head(&llama, 0);
    }
}

/* What each rank's device has held of parameters, gradients and optimizer state at most is what is
 * planned for its one stage. */
static sl_status check_held(void *context, const sl_run_info *info, const sl_run_result *result)
{
    const sl_memory_category held[] = {SL_MEMORY_PARAMETERS, SL_MEMORY_GRADIENTS,
                                       SL_MEMORY_OPTIMIZER};
    for (int rank = 0; rank < RANKS; rank++) {
        const sl_stage_plan *plan = &shared_plan.stage[rank];
        int64_t expected[] = {plan->parameter_bytes + plan->best_bytes, plan->gradient_bytes,
                              plan->optimizer_bytes};
        for (int i = 0; i < 3; i++) {
            int64_t peak = (int64_t)info->ranks[rank].stats.peak_bytes[held[i]];
            if (peak < expected[i] * 9 / 10 || peak > expected[i] * 11 / 10)
                return sl_error(SL_ERR_INTERNAL, "rank %d: planned %d bytes of kind %d, taken %d",
                                rank, (int)expected[i], i, (int)peak);
        }
    }
    return small_finished(context, info, result);
}

static sl_status run_checked_rank(sl_group *group, void *arg)
{
    static small_record records[RANKS];
    sl_run_result result;
    sl_reporter reporter = small_reporter(&records[sl_group_rank(group)]);
    if (sl_group_rank(group) == 0)
        reporter.finished = check_held;
    return run_as_rank(arg, group, RANKS, &reporter, 1, &result);
}

static void check_words_held(scratch *dir, bool tie)
{
    sl_train_options options = split_options(dir);
    options.model.tie = tie;
    options.model.emsize = 64;
    options.model.nhid = 16;
    options.pipeline_ranks = RANKS;
    options.replicas = 1;
    options.optimizer.kind = SL_OPTIMIZER_ADAMW;
    options.eval_every = 2;
    sl_train_options sized = options;
    sl_corpus *corpus;
    check_ok(sl_corpus_load(options.data, NULL, &corpus));
    sized.model.ntokens = sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    shared_plan = plan_of_launch(&sized, &(sl_train_launch){.ranks = RANKS});
    check_ok(sl_spawn(run_checked_rank, &options, RANKS, NULL));
}

static void ranks_hold_their_own_words(void **state)
{
    check_words_held(*state, false);
    check_words_held(*state, true);
}

static void check_refused(const sl_train_options *options, sl_status status, const char *text)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_error(sl_plan_create(options, NULL, model, NULL, &plan), status, text);
}

static void plan_refuses_what_a_pipe_would(void **state)
{
    sl_train_options options = planned_options();
    options.precision = SL_PRECISION_TF32;
    check_refused(&options, SL_ERR_UNSUPPORTED, "the head cannot be split: the precision must be");
    options.precision = SL_PRECISION_F32;
    options.devices = "cpu:0,cuda:0";
    check_refused(&options, SL_ERR_UNSUPPORTED, "the devices must be CPUs");
    options.devices = NULL;
    options.model.freeze = "*.decoder.weight";
    check_refused(&options, SL_ERR_UNSUPPORTED, "its weight must be trained");
    options.model.freeze = NULL;
    options.model.ntokens = 1;
    check_refused(&options, SL_ERR_INVALID, "1 classes in 1 block are too few for 2 ranks");
}

static void plan_refuses_a_table_that_splits_what_the_run_does_not(void **state)
{
    SCOPED(sl_schedule) *table = NULL;
    sl_train_options options = planned_options();
    check_ok(sl_schedule_write("1f1b", &(sl_schedule_options){.ranks = 2, .micros = 4}, &table));
    check_ok(sl_schedule_split_head(table, 1));
    options.schedule = "split.csv";
    options.table = table;
    options.chunks = 4;
    plan_of_launch(&options, NULL);
    options.split_vocabulary = false;
    check_refused(&options, SL_ERR_INVALID,
                  "the schedule split.csv splits the head over all ranks, and split_vocabulary is "
                  "not set");
}

/* Beside a head that takes nearly all of the time the last stage has nothing else, and of a split
 * one half of the layers. */
static void cut_by_time_divides_the_layers_beside_a_split_head(void **state)
{
    enum { LAYERS = 4 };
    sl_module_profile profiles[LAYERS + 2];
    sl_train_options options;
    sl_train_options_default(&options);
    options.model = (sl_model_options){
        .ntokens = 20000, .emsize = 32, .nhid = 32, .nhead = 2, .nlayers = LAYERS, .context = 16};
    options.bptt = 16;
    options.batch_size = options.eval_batch_size = options.chunks = 8;
    options.replicas = 1;
    options.pipeline_ranks = 2;
    options.devices = "cpu:0,cpu:1";
    options.recompute = SL_RECOMPUTE_NEVER;
    options.balance_kind = SL_BALANCE_AUTO;
    for (int split = 0; split < 2; split++) {
        SCOPED(sl_module) *model = NULL;
        sl_plan *plan;
        options.split_vocabulary = split;
        check_ok(sl_transformer_lm_create(&options.model, &model));
        check_ok(sl_plan_create(&options, NULL, model, profiles, &plan));
        if (split)
            assert_in_range(plan->stage[1].count, 2, LAYERS);
        else
            assert_int_equal(plan->stage[1].count, 1);
        sl_plan_destroy(&plan);
    }
}

int split_vocabulary_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(run_has_the_same_bits_for_any_number_of_ranks,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(frozen_bias_of_a_split_head_is_let_be_in_other_processes,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(ranks_that_own_their_words_have_the_same_bits,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(run_resumes_in_other_processes, small_corpus_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(replicas_of_processes_save_what_their_ranks_own,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(run_resumes_with_other_ranks_and_not_without_the_option,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(planned_memory_is_what_a_run_takes, small_corpus_create,
                                        scratch_remove),
        cmocka_unit_test(a_head_in_several_processes_is_planned_for),
        cmocka_unit_test(cut_by_time_divides_the_layers_beside_a_split_head),
        cmocka_unit_test_setup_teardown(ranks_hold_their_own_words, small_corpus_create,
                                        scratch_remove),
        cmocka_unit_test(plan_refuses_what_a_pipe_would),
        cmocka_unit_test(plan_refuses_a_table_that_splits_what_the_run_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

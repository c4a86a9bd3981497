/* Shards of the text: a run has the same bits with any number of replicas, in any layout, also from
 * checkpoints of other layouts. */
#include "plans.h"
#include "small_run.h"

#include "core/checksum.h"
#include "core/file.h"
#include "core/philox.h"

enum { EPOCHS = 2, BATCHES = 4, STEPS = EPOCHS * BATCHES, WORDS = 3000 };

/* ---- Runs ----------------------------------------------------------------------------------- */

/* An epoch's end, dropout, clipping and AdamW's state are all in it. */
static sl_train_options two_epochs(scratch *dir)
{
    sl_train_options options = small_options(dir);
    options.epochs = EPOCHS;
    options.max_batches = BATCHES;
    options.optimizer.kind = SL_OPTIMIZER_ADAMW;
    options.lr = (sl_lr_schedule){.kind = SL_LR_COSINE, .lr = 0.003, .warmup_steps = 2};
    return options;
}

/* A folder of checkpoints, one a step. */
static const char *folder(scratch *in, int number)
{
    static char paths[4][600];
    snprintf(paths[number], sizeof paths[number], "%s/saved%d", in->directory, number);
    return paths[number];
}

static const char *checkpoint(scratch *in, int number, int64_t step)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/step-%08d", folder(in, number), (int)step);
    return path;
}

static void remove_folders(const scratch *dir, const char *names)
{
    char line[700];
    snprintf(line, sizeof line, "rm -rf '%s'/%s", dir->directory, names);
    assert_int_equal(system(line), 0);
}

static int remove_all(void **state)
{
    remove_folders(*state, "saved*");
    return scratch_remove(state);
}

/* The run's final weights. */
static const char *weights_path(const scratch *dir)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/weights", dir->directory);
    return path;
}

typedef struct shard_record {
    small_record run;
    char weights[SLI_CHECKSUM_BYTES]; /* of the file */
} shard_record;

/* One of a run's ranks; the first one records. */
typedef struct ranks_of_run {
    const sl_train_options *options;
    int ranks;
    bool apart; /* only the first one sees the folder of checkpoints */
    const sl_reporter *reporter;
} ranks_of_run;

static sl_status run_rank(sl_group *group, void *arg)
{
    const ranks_of_run *run = arg;
    sl_run_result result;
    char nowhere[512];
    sl_train_options options = *run->options;
    snprintf(nowhere, sizeof nowhere, "%s/train.txt/below", options.data); /* nobody can create */
    if (run->apart && options.checkpoints.directory && sl_group_rank(group) > 0)
        options.checkpoints.directory = nowhere;
    return run_as_rank(&options, group, run->ranks, run->reporter, 1, &result);
}

/* Where `ranks` is 0, all replicas are threads of one run. */
static sl_status shard_run(const sl_train_options *options, int ranks, bool apart,
                           shard_record *record)
{
    char *data, path[700];
    size_t bytes;
    sl_run_result result;
    sl_reporter reporter = small_reporter(&record->run);
    ranks_of_run run = {options, ranks, apart, &reporter};
    SL_TRY(ranks > 0 ? sl_spawn(run_rank, &run, ranks, NULL)
                     : sl_train_run(options, &reporter, 1, &result));
    if (!options->save)
        return SL_OK;
    snprintf(path, sizeof path, "%s/model.safetensors", options->save);
    SL_TRY(sli_file_read(path, 1 << 24, &data, &bytes));
    sli_checksum_of(data, bytes, record->weights);
    free(data);
    return SL_OK;
}

/* `rest` is a run that began after `done` steps of `whole`. */
static void check_same_bits(const shard_record *whole, const shard_record *rest, int64_t done)
{
    int missing = whole->run.eval_count - rest->run.eval_count;
    assert_int_equal(rest->run.step_count, whole->run.step_count - done);
    for (int i = 0; i < rest->run.step_count; i++) {
        const sl_step_info *got = &rest->run.steps[i], *expected = &whole->run.steps[done + i];
        assert_int_equal(got->tokens, expected->tokens);
        assert_int_equal(got->batches_per_epoch, expected->batches_per_epoch);
        check_same_step(got, expected);
    }
    for (int i = 0; i < rest->run.eval_count; i++)
        assert_memory_equal(&rest->run.evals[i].loss, &whole->run.evals[missing + i].loss,
                            sizeof(double));
    assert_memory_equal(&rest->run.result.test_loss, &whole->run.result.test_loss, sizeof(double));
    assert_string_equal(rest->weights, whole->weights);
}

/* ---- Layouts -------------------------------------------------------------------------------- */

typedef struct run_layout {
    int replicas, ranks, virtual_stages;
    int processes; /* threads in their stead, for each replica; 0: all replicas are in one run */
    bool apart;    /* the processes do not see one folder */
    bool zero;
    int accumulate; /* steps that divide the batch's micro-batches; 0: 1 */
    const char *schedule, *placement;
    sl_recompute recompute;
    sl_balance_kind balance;
} run_layout;

static sl_train_options laid_out(sl_train_options options, const run_layout *layout)
{
    options.replicas = layout->replicas;
    options.pipeline_ranks = layout->ranks;
    options.virtual_stages = layout->virtual_stages;
    options.zero = layout->zero && layout->replicas > 1;
    options.schedule = layout->schedule;
    options.placement = layout->placement;
    options.accumulate = layout->accumulate ? layout->accumulate : 1;
    options.chunks /= options.accumulate;
    options.recompute = layout->recompute;
    options.balance_kind = layout->balance;
    return options;
}

/* Trains in `layout`, from step `from` of the checkpoints in folder `source` (-1: from the
 * beginning, with no folders left), with a checkpoint after every step in folder `target`. */
static void train_saving(scratch *in, const sl_train_options *options, const run_layout *layout,
                         int source, int64_t from, int target, shard_record *record)
{
    sl_train_options all = laid_out(*options, layout);
    if (source < 0)
        remove_folders(in, "saved*");
    else
        all.shards = 0; /* the checkpoint's */
    all.checkpoints = (sl_save_options){.directory = folder(in, target),
                                        .every_steps = 1,
                                        .resume = source < 0 ? NULL : checkpoint(in, source, from)};
    check_ok(shard_run(&all, layout->replicas * layout->processes, layout->apart, record));
}

static uint32_t draw(uint64_t seed, uint32_t *draws, uint32_t below)
{
    uint32_t counter[4] = {(*draws)++, 0, 0, 0};
    sli_philox(sli_philox_key_make(seed, SLI_RANDOM_SAMPLE), counter);
    return counter[0] % below;
}

/* Any that a run with these options may have. */
static run_layout draw_layout(uint64_t seed, uint32_t *draws, const sl_train_options *options)
{
    run_layout out;
    sl_train_options drawn;
    int schedules = 0, micros = options->chunks;
    while (sl_schedule_names[schedules])
        schedules++;
    do {
        out = (run_layout){.replicas = 1 + (int)draw(seed, draws, (uint32_t)options->shards),
                           .ranks = 1 + (int)draw(seed, draws, 3),
                           .virtual_stages = (int)draw(seed, draws, 3),
                           .zero = draw(seed, draws, 2),
                           .schedule = sl_schedule_names[draw(seed, draws, (uint32_t)schedules)],
                           .recompute = (sl_recompute)draw(seed, draws, 3),
                           .balance = draw(seed, draws, 3) ? SL_BALANCE_LAYERS : SL_BALANCE_AUTO};
        out.processes = (int)draw(seed, draws, (uint32_t)out.ranks + 1);
        if (out.ranks % (out.processes ? out.processes : 1) != 0)
            out.processes = 0;
        if (strcmp(out.schedule, "looped-bfs") == 0 && draw(seed, draws, 2))
            out.placement = "v";
        do
            out.accumulate = 1 + (int)draw(seed, draws, (uint32_t)micros);
        while (micros % out.accumulate != 0);
        out.apart = draw(seed, draws, 2);
        drawn = laid_out(*options, &out);
    } while (sl_train_options_check(&drawn) != SL_OK);
    return out;
}

static void print_layout(const char *what, int64_t from, const run_layout *layout)
{
    print_message("    %s from step %d: %d replicas of %d ranks in %d processes%s, %d stages each, "
                  "%s%s, %d accumulation steps, %s%s, balance %d\n",
                  what, (int)from, layout->replicas, layout->ranks, layout->processes,
                  layout->apart ? " apart" : "", layout->virtual_stages, layout->schedule,
                  layout->placement ? " in a V" : "", layout->accumulate,
                  sl_recompute_name(layout->recompute), layout->zero ? ", zero" : "",
                  (int)layout->balance);
}

/* Every other run has a decoder. */
static void draw_family(uint64_t seed, uint32_t *draws, sl_train_options *options)
{
    unsigned state = draw(seed, draws, 1 << 20);
    if (draw(seed, draws, 2))
        return;
    options->model = draw_decoder(&state, (int)options->model.nlayers, WORDS, (int)options->bptt);
}

/* One run in four layouts: from the beginning in two of them; and in the others after
 * interruptions, the second of which is of a run that itself has other replicas than the first. */
static void check_drawn_run(scratch *dir, uint64_t seed)
{
    static shard_record whole, other;
    uint32_t draws = 0;
    sl_train_options options = two_epochs(dir);
    options.save = weights_path(dir);
    options.model.nlayers = 4;
    options.model.tie = draw(seed, &draws, 2);
    draw_family(seed, &draws, &options);
    options.shuffle = draw(seed, &draws, 2);
    options.shards = 1 + (int)draw(seed, &draws, 7);
    options.batch_size = 1 + draw(seed, &draws, 4);
    options.chunks = 1 + (int)draw(seed, &draws, 8);
    options.comm_precision = (sl_precision)draw(seed, &draws, 2);
    options.precision = draw(seed, &draws, 3) ? SL_PRECISION_F32 : SL_PRECISION_BF16;
    options.optimizer.precision = draw(seed, &draws, 2) ? SL_PRECISION_F32 : SL_PRECISION_BF16;
    options.split_vocabulary = draw(seed, &draws, 2);
    print_message("seed %d: %s, %s, averages of %s%s, %d shards of %d rows, %d micro-batches, sums "
                  "of %s\n",
                  (int)seed, sl_family_names[options.model.family],
                  sl_precision_names[options.precision],
                  sl_precision_names[options.optimizer.precision],
                  options.split_vocabulary ? ", split vocabulary" : "", options.shards,
                  (int)options.batch_size, options.chunks,
                  sl_precision_names[options.comm_precision]);
    run_layout layouts[4];
    for (int i = 0; i < 4; i++)
        layouts[i] = draw_layout(seed, &draws, &options);
    int64_t at = 1 + draw(seed, &draws, STEPS - 2);
    int64_t later = at + 1 + draw(seed, &draws, (uint32_t)(STEPS - at));
    print_layout("saved", 0, &layouts[0]);
    train_saving(dir, &options, &layouts[0], -1, 0, 0, &whole);
    print_layout("alone", 0, &layouts[1]);
    sl_train_options alone = laid_out(options, &layouts[1]);
    check_ok(shard_run(&alone, layouts[1].replicas * layouts[1].processes, false, &other));
    check_same_bits(&whole, &other, 0);
    print_layout("resumed", at, &layouts[2]);
    train_saving(dir, &options, &layouts[2], 0, at, 1, &other);
    check_same_bits(&whole, &other, at);
    print_layout("resumed", later, &layouts[3]);
    train_saving(dir, &options, &layouts[3], 1, later, 2, &other);
    check_same_bits(&whole, &other, later);
}

/* SLUICE_TEST_SEED: the first case's seed; SLUICE_TEST_CASES: how many. */
static void one_run_has_the_same_bits_in_any_layout(void **state)
{
    const char *seed = getenv("SLUICE_TEST_SEED"), *cases = getenv("SLUICE_TEST_CASES");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t end = first + (cases ? strtoull(cases, NULL, 10) : (uint64_t)test_rounds(10));
    for (uint64_t at = first; at < end; at++)
        check_drawn_run(*state, at);
}

/* A preset's ids mean the tokens of its tokenizer, not a text's words. */
static void models_of_words_have_no_ids_of_special_tokens(void **state)
{
    static shard_record record;
    scratch *dir = *state;
    unsigned seed = 1;
    char path[700], text[8192];
    sl_train_options options = two_epochs(dir);
    options.model = draw_decoder(&seed, 2, WORDS, (int)options.bptt);
    strcpy(options.model.decoder.token_ids, "{\"eos_token_id\":2}");
    options.save = weights_path(dir);
    check_ok(shard_run(&options, 0, false, &record));
    snprintf(path, sizeof path, "%s/config.json", options.save);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_non_null(strstr(text, "\"model_type\""));
    assert_null(strstr(text, "eos_token_id"));
}

static void shards_are_the_checkpoints_and_limit_the_replicas(void **state)
{
    static shard_record record;
    scratch *in = *state;
    sl_train_options options = two_epochs(in);
    options.shards = 2;
    train_saving(in, &options, &(run_layout){.replicas = 1, .ranks = 1}, -1, 0, 0, &record);
    options.checkpoints = (sl_save_options){.resume = folder(in, 0)};
    options.shards = 0;
    options.replicas = 3;
    check_error(shard_run(&options, 0, false, &record), SL_ERR_INVALID,
                "3 replicas are too many: the training text has 2 shards");
    options.shards = 3;
    check_error(shard_run(&options, 0, false, &record), SL_ERR_INVALID,
                "the checkpoint was made with shards 2, this run has shards 3");
    options.shards = 0;
    options.replicas = 2;
    options.comm_precision = SL_PRECISION_BF16;
    check_error(shard_run(&options, 0, false, &record), SL_ERR_INVALID,
                "the checkpoint was made with comm-precision not given, this run has "
                "comm-precision \"bf16\"");
    options.comm_precision = SL_PRECISION_F32;
    check_ok(shard_run(&options, 0, false, &record)); /* only the test is left */
}

int shards_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_run_has_the_same_bits_in_any_layout),
        cmocka_unit_test(models_of_words_have_no_ids_of_special_tokens),
        cmocka_unit_test(shards_are_the_checkpoints_and_limit_the_replicas),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, remove_all);
}

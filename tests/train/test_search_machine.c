/* Plans for machines that are made by hand. */
#include "made_machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A plan's own table takes as long as the search has said. */
static void check_simulation(const sl_found_plan *plan)
{
    const sl_train_options *options = &plan->options;
    int shards = (options->shards + options->replicas - 1) / options->replicas,
        steps = options->accumulate > 0 ? options->accumulate : 1;
    SCOPED(sl_schedule) *table = NULL;
    sl_simulation simulation;
    check_ok(sl_found_plan_simulate(plan, &table, &simulation));
    assert_true(fabs(shards * steps * simulation.makespan / plan->costs.pipeline - 1) < 1e-9);
    assert_true(fabs(simulation.bubble - plan->costs.bubble) < 1e-9);
    sl_simulation_clear(&simulation);
}

/* Every plan is one that a run may have, and trains the same rows. */
static void check_plans(const sl_found_plan *plans, int count, int64_t rows)
{
    for (int i = 0; i < count; i++) {
        const sl_train_options *options = &plans[i].options;
        check_ok(sl_train_options_check(options));
        assert_int_equal(options->shards * options->batch_size, rows);
        check_simulation(&plans[i]);
        assert_float_equal(plans[i].tokens_per_s * plans[i].costs.seconds, 8.0 * (double)rows,
                           1e-6);
        assert_true(i == 0 || plans[i].costs.seconds >= plans[i - 1].costs.seconds);
    }
}

static int search(made_machine *made, const sl_train_options *run, unsigned kept, int64_t tokens,
                  sl_found_plan *plans)
{
    int count;
    const sli_machine machine = machine_of(made);
    const sl_plan_search_options options = {.run = run, .kept = kept, .batch_tokens = tokens};
    check_ok(sli_plan_search_machine(&options, run, &machine, plans, &count));
    check_plans(plans, count, tokens > 0 ? tokens / run->bptt : run->batch_size);
    return count;
}

/* 2 replicas have no bubble: 18 units of 8 rows each. With an exchange that takes longer than a
 * bubble, two stages are best: of a row each where the schedule has the smallest bubble. With an
 * exchange and one heavy module, both cores in one stage. */
static void best_plan_is_the_one_that_is_known(void **state)
{
    static const double even[MODULES] = {1, 1, 1, 1, 1, 1}, heavy[MODULES] = {6, 0, 0, 0, 0, 0};
    sl_train_options run = options_of_model();
    made_machine made = {.reduce_seconds = 0};
    sl_found_plan plans[SL_PLANS_FOUND];
    memcpy(made.seconds_of_row, even, sizeof even);
    int count = search(&made, &run, 0, 0, plans);
    assert_int_equal(count, SL_PLANS_FOUND);
    assert_int_equal(plans[0].options.replicas, 2);
    assert_int_equal(plans[0].options.pipeline_ranks, 1);
    assert_int_equal(plans[0].options.shards, 2);
    assert_int_equal(plans[0].options.batch_size, 8);
    assert_int_equal(plans[0].options.recompute, SL_RECOMPUTE_NEVER);
    assert_float_equal(plans[0].costs.seconds, 18 * 8, 1e-9);

    double exchange[2];
    made.reduce_per_byte = 1e-6;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        run.comm_precision = is_bf16 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        search(&made, &run, 0, 0, plans);
        exchange[is_bf16] = plans[0].costs.exchange;
    }
    assert_true(exchange[1] > 0);
    assert_float_equal(exchange[0], 2 * exchange[1], 1e-9);
    made.reduce_per_byte = 0;
    run.comm_precision = SL_PRECISION_F32;

    made.reduce_seconds = 1000;
    search(&made, &run, 0, 0, plans);
    assert_int_equal(plans[0].options.replicas, 1);
    assert_int_equal(plans[0].options.pipeline_ranks, 2);
    assert_int_equal(plans[0].options.chunks, 16);
    assert_string_equal(plans[0].options.devices, "cpu:0,cpu:1");
    /* A zero bubble's weights fill all but the first stage's forward of a row. */
    assert_true(plans[0].costs.seconds < 18 * 8 + 9);

    memcpy(made.seconds_of_row, heavy, sizeof heavy);
    search(&made, &run, 0, 0, plans);
    assert_float_equal(plans[0].costs.seconds, 18 * 16 / 1.6, 1e-9);
    assert_int_equal(plans[0].options.pipeline_ranks, 1); /* two on shared cores take as long */
}

/* How many of the plans for two pipeline ranks of a replica, *count, split the vocabulary. */
static int count_split(made_machine *made, sl_train_options run, unsigned kept,
                       sl_found_plan *plans, int *count)
{
    int split = 0;
    run.replicas = 1;
    run.pipeline_ranks = 2;
    *count = search(made, &run, SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | kept, 0, plans);
    for (int i = 0; i < *count; i++)
        split += plans[i].options.split_vocabulary;
    return split;
}

/* Of a last module that is longer than all others together, two ranks on the same cores are best,
 * at 1 / 1.6 of its time; split, two ranks with cores of their own, at little more than half. */
static void split_vocabulary_is_searched(void **state)
{
    sl_train_options run = options_of_model();
    made_machine large = {.seconds_of_row = {0, 1, 1, 1, 1, 12}},
                 small = {.seconds_of_row = {0, 1, 1, 1, 1, 0}};
    sl_found_plan whole[SL_PLANS_FOUND], split[SL_PLANS_FOUND];
    int count;
    assert_int_equal(count_split(&large, run, 0, whole, &count), 0); /* of 50 words */
    run.model.ntokens = 64 * 256;
    assert_int_equal(count_split(&large, run, SL_KEEP_SPLIT_VOCABULARY, whole, &count), 0);
    count_split(&large, run, 0, split, &count);
    assert_true(split[0].options.split_vocabulary);
    assert_true(split[0].costs.seconds < 0.9 * whole[0].costs.seconds);
    for (int i = 0; i < count; i++)
        assert_false(split[i].options.split_vocabulary && split[i].shares_cores);
    assert_int_equal(count_split(&small, run, 0, whole, &count), 0);
    run.split_vocabulary = true;
    int given = count_split(&small, run, 0, split, &count);
    assert_int_equal(given, count);
    run.split_vocabulary = false;
    run.slices = 2;
    assert_int_equal(count_split(&large, run, 0, whole, &count), 0);
}

/* Two ranks on the same cores take as long as one that has them. */
static void named_devices_of_the_same_cores_share_them(void **state)
{
    static const char *const devices[] = {"cpu,cpu", "cpu:0-1; cpu:0-1", "cpu:0,cpu:1", "cpu:0",
                                          "cpu,cpu:0"};
    static const sli_sharing sharing[] = {SLI_SHARING_ALWAYS, SLI_SHARING_ALWAYS, SLI_SHARING_TRIED,
                                          SLI_SHARING_TRIED, SLI_SHARING_TRIED};
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sli_machine machine;
    sl_found_plan plans[SL_PLANS_FOUND];
    int count;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        run.devices = devices[i];
        check_ok(sli_machine_open(&run, 0, 0, &machine));
        assert_int_equal(machine.sharing, sharing[i]);
        sli_machine_close(&machine);
    }
    const sl_plan_search_options options = {.run = &run,
                                            .kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS};
    run.replicas = 1;
    run.pipeline_ranks = 2;
    run.devices = devices[0];
    machine = machine_of(&made);
    machine.sharing = SLI_SHARING_ALWAYS;
    check_ok(sli_plan_search_machine(&options, &run, &machine, plans, &count));
    assert_true(count > 0 && plans[0].shares_cores);
    assert_float_equal(plans[0].costs.seconds, 18 * 16 / 1.6, 1e-9);
}

/* With 4 micro-batches of equal layers: of the slices' bubble only half is left. */
static void slices_are_planned_as_they_are_given(void **state)
{
    const unsigned kept =
        SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_SCHEDULE | SL_KEEP_CHUNKS;
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {0, 1, 1, 1, 1, 0}};
    sl_found_plan whole[SL_PLANS_FOUND], sliced[SL_PLANS_FOUND];
    run.replicas = 1;
    run.pipeline_ranks = 2;
    run.chunks = 4;
    run.schedule = "1f1b";
    search(&made, &run, kept, 0, whole);
    run.slices = 2;
    search(&made, &run, kept, 0, sliced);
    assert_int_equal(sliced[0].options.slices, 2);
    assert_float_equal(sliced[0].costs.pipeline / whole[0].costs.pipeline, 4.5 / 5, 1e-9);
    sl_schedule *table;
    sl_simulation simulation;
    check_ok(sl_found_plan_simulate(&sliced[0], &table, &simulation));
    assert_int_equal(sl_schedule_slices(table), 2);
    assert_float_equal(simulation.makespan, sliced[0].costs.pipeline, 1e-9);
    sl_simulation_clear(&simulation);
    sl_schedule_destroy(&table);
}

static void refuse(const sl_train_options *run, unsigned kept, int64_t tokens, sl_status status,
                   const char *text)
{
    int count;
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sl_found_plan plans[SL_PLANS_FOUND];
    const sli_machine machine = machine_of(&made);
    const sl_plan_search_options options = {.run = run, .kept = kept, .batch_tokens = tokens};
    check_error(sli_plan_search_machine(&options, run, &machine, plans, &count), status, text);
}

enum { SIX_LAYERS = 6 };

/* Whose backward has no halves that a zero bubble could move. */
static sl_status time_six_layers(void *context, int devices, int64_t rows, sl_module_profile *out)
{
    double unit = (double)rows / (devices == 1 ? 1.6 : 1);
    for (int i = 0; i < SIX_LAYERS + 2; i++)
        out[i] = (sl_module_profile){0};
    for (int i = 1; i <= SIX_LAYERS; i++)
        out[i] = (sl_module_profile){unit, 2 * unit, 2 * unit, 0, 0};
    return SL_OK;
}

/* Of two micro-batches a rank has 2 x 3 layers to do, and waits for one layer where each layer is a
 * stage: less than both cores in one stage lose. Three are no number of stages that a schedule has
 * of its own. */
static void virtual_stages_are_searched(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.reduce_seconds = 1000};
    sli_machine machine = machine_of(&made);
    sl_found_plan plans[SL_PLANS_FOUND];
    int count;
    run.model.nlayers = SIX_LAYERS;
    run.chunks = 2;
    machine.time_modules = time_six_layers;
    const sl_plan_search_options options = {.run = &run, .kept = SL_KEEP_CHUNKS};
    check_ok(sli_plan_search_machine(&options, &run, &machine, plans, &count));
    check_plans(plans, count, run.batch_size);
    assert_int_equal(plans[0].options.pipeline_ranks, 2);
    assert_int_equal(plans[0].options.virtual_stages, 3);
    assert_float_equal(plans[0].costs.seconds, 3 * 8 * (2 * 3 + 1), 1e-9);
    run.virtual_stages = 2;
    check_ok(sli_plan_search_machine(&options, &run, &machine, plans, &count));
    for (int i = 0; i < count; i++)
        assert_int_equal(plans[i].options.virtual_stages, 2);
}

/* The reason is that of the schedule's own number of stages. */
static void other_virtual_stages_are_no_reason(void **state)
{
    sl_train_options run = options_of_model();
    run.schedule = "interleaved";
    run.pipeline_ranks = 3;
    run.replicas = 1;
    refuse(&run, SL_KEEP_SCHEDULE | SL_KEEP_PIPELINE_RANKS | SL_KEEP_REPLICAS, 0, SL_ERR_INVALID,
           "there are more stages than layers: 6 stages, 4 layers");
}

static void given_options_are_kept(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sl_found_plan plans[SL_PLANS_FOUND];
    run.recompute = SL_RECOMPUTE_ALWAYS;
    run.chunks = 4;
    int count =
        search(&made, &run, SL_KEEP_RECOMPUTE | SL_KEEP_CHUNKS | SL_KEEP_BATCH_SIZE, 0, plans);
    for (int i = 0; i < count; i++) {
        assert_int_equal(plans[i].options.recompute, SL_RECOMPUTE_ALWAYS);
        assert_int_equal(plans[i].options.chunks, 4);
        assert_int_equal(plans[i].options.batch_size, 16);
        assert_int_equal(plans[i].options.replicas, 1); /* each needs a shard */
    }
    count = search(&made, &run, SL_KEEP_BATCH_SIZE, 8 * 48, plans);
    assert_int_equal(plans[0].options.shards, 3);
    run.schedule = "1f1b";
    run.pipeline_ranks = 2;
    count = search(&made, &run, SL_KEEP_SCHEDULE | SL_KEEP_PIPELINE_RANKS, 0, plans);
    assert_int_equal(count, 1);
    assert_string_equal(plans[0].options.schedule, "1f1b");
    run.replicas = run.chunks = 0; /* open */
    search(&made, &run, SL_KEEP_REPLICAS | SL_KEEP_CHUNKS, 0, plans);
    assert_int_equal(plans[0].options.replicas, 2);
    run.chunks = 4;
    run.replicas = 4; /* more than there are cores */
    run.pipeline_ranks = 1;
    search(&made, &run, SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS, 0, plans);
    assert_int_equal(plans[0].options.replicas, 4);
    run = options_of_model();
    run.balance_kind = SL_BALANCE_EXPLICIT;
    run.balance_count = 2;
    run.balance[0] = 5;
    run.balance[1] = 1;
    count = search(&made, &run, SL_KEEP_BALANCE, 0, plans);
    for (int i = 0; i < count; i++) {
        assert_int_equal(plans[i].options.balance[0], 5);
        assert_int_equal(plans[i].options.pipeline_ranks, 2);
    }
}

static void split_vocabulary_of_a_frozen_head_is_never_planned(void **state)
{
    sl_train_options run = options_of_model();
    made_machine large = {.seconds_of_row = {0, 1, 1, 1, 1, 12}};
    sl_found_plan plans[SL_PLANS_FOUND];
    int count;
    run.model.freeze = "*.decoder.weight";
    assert_int_equal(count_split(&large, run, 0, plans, &count), 0);
    run.split_vocabulary = true;
    refuse(&run, 0, 0, SL_ERR_UNSUPPORTED, "the head cannot be split: its weight");
}

/* Rows that no number of shards of this size has are refused. */
static void another_batch_size_than_the_given_one_is_never_planned(void **state)
{
    sl_train_options run = options_of_model();
    run.batch_size = 4;
    refuse(&run, SL_KEEP_BATCH_SIZE, 10 * run.bptt, SL_ERR_INVALID,
           "the 10 rows of a step cannot be divided");
    run.shards = 2;
    refuse(&run, SL_KEEP_BATCH_SIZE | SL_KEEP_SHARDS, 16 * run.bptt, SL_ERR_INVALID,
           "the 16 rows of a step cannot be divided");
}

static int count_names(const char *devices)
{
    int count = 1;
    for (; *devices; devices++)
        count += *devices == ',';
    return count;
}

/* As many as one list of devices can have. */
static void plan_names_all_its_devices(void **state)
{
    static const int replicas[] = {40, 512};
    sl_train_options run = options_of_model();
    sl_found_plan plans[SL_PLANS_FOUND];
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    const unsigned kept =
        SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_SCHEDULE | SL_KEEP_CHUNKS;
    run.pipeline_ranks = 2;
    run.schedule = "gpipe";
    run.chunks = 1;
    for (int i = 0; i < 2; i++) {
        int count;
        run.replicas = replicas[i];
        run.batch_size = replicas[i];
        const sli_machine machine = machine_of(&made);
        const sl_plan_search_options options = {.run = &run, .kept = kept};
        check_ok(sli_plan_search_machine(&options, &run, &machine, plans, &count));
        assert_int_equal(count, 1);
        assert_int_equal(count_names(plans[0].options.devices), 2 * replicas[i]);
    }
    run.replicas = 1024;
    run.batch_size = 1024;
    refuse(&run, kept, 0, SL_ERR_UNSUPPORTED,
           "1024 replicas of 2 pipeline ranks have more devices than a plan can name");
}

/* Measurements are never equal, but for those that are remembered. */
static void machine_is_measured_once_for_each_number_of_devices(void **state)
{
    sl_train_options run = options_of_model();
    sli_machine machine;
    sl_link_cost reduce[2], gather[2];
    sli_update_speed update[2];
    check_ok(sli_machine_open(&run, 0, 0, &machine));
    for (int i = 0; i < 2; i++) {
        check_ok(machine.time_exchange(machine.context, 2, &reduce[i], &gather[i]));
        check_ok(machine.time_update(machine.context, 2, &update[i]));
    }
    assert_memory_equal(&reduce[0], &reduce[1], sizeof *reduce);
    assert_memory_equal(&gather[0], &gather[1], sizeof *gather);
    assert_memory_equal(&update[0], &update[1], sizeof *update);
    sli_machine_close(&machine);
}

/* As long as there is time for it, and what the search asks for in between. */
static void machine_is_measured_again_while_there_is_time(void **state)
{
    sl_train_options run = options_of_model();
    sli_machine machine;
    sl_module_profile times[MODULES];
    sli_update_speed update;
    double spread;
    bool is_measured;
    check_ok(sli_machine_open(&run, 0, 0.2, &machine));
    check_ok(machine.measure_again(machine.context, &is_measured));
    assert_false(is_measured); /* there is nothing */
    check_ok(machine.time_modules(machine.context, 1, 3, times));
    check_ok(machine.time_update(machine.context, 1, &update));
    assert_true(machine.find_spread(machine.context, 1, 3) < 0);
    check_ok(machine.measure_again(machine.context, &is_measured));
    assert_true(is_measured);
    assert_true(machine.find_spread(machine.context, 1, 1) < 0); /* on the way to more rows */
    spread = machine.find_spread(machine.context, 1, 3);
    assert_true(spread >= machine.find_spread(machine.context, 1, 2));
    assert_true(machine.find_spread(machine.context, 1, 1 << 20) ==
                machine.find_spread(machine.context, 1, 4));
    check_ok(machine.time_modules(machine.context, 1, 3, times));
    check_ok(machine.measure_again(machine.context, &is_measured));
    assert_false(is_measured); /* nothing that was not measured again */
    sli_machine_close(&machine);

    check_ok(sli_machine_open(&run, 0, 0, &machine));
    check_ok(machine.time_modules(machine.context, 1, 1, times));
    check_ok(machine.measure_again(machine.context, &is_measured));
    assert_false(is_measured); /* there is no time */
    assert_true(machine.find_spread(machine.context, 1, 1) < 0);
    sli_machine_close(&machine);
}

/* The embedding's 62 MiB and three copies of them, and not the layer's 100 behind it. */
static void update_is_timed_with_little_memory(void **state)
{
#ifdef __SANITIZE_THREAD__ /* whose shadow takes several times the memory */
    print_message("skipped: the memory of ThreadSanitizer counts too\n");
    skip();
#endif
    enum { KIB_OF_STEPS = 4 * 64 << 10, KIB_OF_REST = 100 << 10 };
    struct rusage before, after;
    sl_train_options run = options_of_model();
    sli_machine machine;
    sli_update_speed update;
    run.model = (sl_model_options){
        .ntokens = 16000, .emsize = 1024, .nhid = 10240, .nhead = 2, .nlayers = 1, .context = 8};
    check_ok(sli_machine_open(&run, 0, 0, &machine));
    getrusage(RUSAGE_SELF, &before);
    check_ok(machine.time_update(machine.context, 1, &update));
    getrusage(RUSAGE_SELF, &after);
    assert_true(update.optimizer > 0 && update.table_zero > 0 && update.tie_sum > 0);
    assert_true(after.ru_maxrss - before.ru_maxrss < KIB_OF_STEPS + KIB_OF_REST);
    sli_machine_close(&machine);
}

/* Whether rows beyond those that fit the memory take as much time each. */
static bool times_what_does_not_fit(const sl_train_options *run)
{
    enum { MANY = 1 << 16 };
    sl_module_profile most[MODULES], many[MODULES];
    sli_machine machine;
    check_ok(sli_machine_open(run, 0, 0, &machine));
    check_ok(machine.time_modules(machine.context, 1, 1, most));
    limit_address_space(64 << 20);
    check_ok(machine.time_modules(machine.context, 1, MANY, many));
    int64_t rows = sli_machine_timed_rows(&machine, 1);
    check_ok(machine.time_modules(machine.context, 1, rows, most));
    double ratio = many[1].forward / most[1].forward;
    sli_machine_close(&machine);
    return rows < MANY && fabs(ratio / ((double)MANY / (double)rows) - 1) < 1e-9;
}

/* In a process of its own. A row's hidden layer takes 2 MiB, and hardly any time. */
static void rows_that_do_not_fit_are_not_timed(void **state)
{
    if (IS_SANITIZED) {
        print_message("skipped: a sanitizer's shadow memory takes more than any limit\n");
        skip();
    }
    int ended;
    sl_train_options run = options_of_model();
    run.model = (sl_model_options){
        .ntokens = 50, .emsize = 4, .nhid = 1 << 16, .nhead = 2, .nlayers = 1, .context = 8};
    pid_t child = fork();
    if (child == 0)
        _exit(times_what_does_not_fit(&run) ? 0 : 1);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
}

/* More than a machine has cores. */
static void machine_times_hundreds_of_devices(void **state)
{
    sl_train_options run = options_of_model();
    sli_machine machine;
    sli_update_speed update;
    check_ok(sli_machine_open(&run, 0, 0, &machine));
    check_ok(machine.time_update(machine.context, 400, &update));
    assert_true(update.optimizer > 0 && update.table_zero > 0 && update.tie_sum > 0);
    sli_machine_close(&machine);
}

/* Nothing is timed that does not fit. */
static void what_fits_nowhere_is_one_error(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sli_machine machine = machine_of(&made);
    sl_found_plan plans[SL_PLANS_FOUND];
    int count;
    const sl_plan_search_options all = {.run = &run};
    machine.host_bytes = 1000;
    check_error(sli_plan_search_machine(&all, &run, &machine, plans, &count), SL_ERR_MEMORY,
                "no layout of at most 2 ranks fits the memory: the smallest has 1 replica of 1 "
                "pipeline rank and needs ");
    assert_int_equal(made.timed, 0);
    const sl_plan_search_options odd = {.run = &run, .batch_tokens = 9};
    check_error(sli_plan_search_machine(&odd, &run, &machine, plans, &count), SL_ERR_INVALID,
                "batch-tokens must be a multiple of the 8 tokens of a row, got 9");
    run.schedule = "zigzag";
    const sl_plan_search_options unknown = {.run = &run, .kept = SL_KEEP_SCHEDULE};
    check_error(sli_plan_search_machine(&unknown, &run, &machine, plans, &count), SL_ERR_NOT_FOUND,
                "zigzag");
    run.schedule = NULL;
    run.shards = 3;
    const sl_plan_search_options thirds = {.run = &run,
                                           .kept = SL_KEEP_SHARDS,
                                           .batch_tokens = 8 * 16};
    check_error(sli_plan_search_machine(&thirds, &run, &machine, plans, &count), SL_ERR_INVALID,
                "the 16 rows of a step cannot be divided");
}

/* Where the whole batch does not fit in one micro-batch, smaller ones are planned and timed. */
static void micro_batches_are_as_small_as_memory_asks_for(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sli_machine machine = machine_of(&made);
    sl_found_plan free_plans[SL_PLANS_FOUND], plans[SL_PLANS_FOUND];
    int count;
    run.batch_size = 64;
    run.eval_batch_size = 1;
    run.replicas = run.pipeline_ranks = 1;
    const sl_plan_search_options one = {.run = &run,
                                        .kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS};
    check_ok(sli_plan_search_machine(&one, &run, &machine, free_plans, &count));
    assert_int_equal(made.most_rows, 64);
    made.most_rows = 0;
    run.chunks = 64;
    const sl_plan_search_options rows = {.run = &run,
                                         .kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS |
                                                 SL_KEEP_CHUNKS};
    check_ok(sli_plan_search_machine(&rows, &run, &machine, plans, &count));
    machine.host_bytes = (uint64_t)plans[0].memory_bytes;
    check_ok(sli_plan_search_machine(&one, &run, &machine, plans, &count));
    assert_true((uint64_t)plans[0].memory_bytes <= machine.host_bytes);
    assert_true(made.most_rows < 64);
}

int search_machine_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(update_is_timed_with_little_memory), /* before others raise the peak */
        cmocka_unit_test(rows_that_do_not_fit_are_not_timed), /* before others start threads */
        cmocka_unit_test(best_plan_is_the_one_that_is_known),
        cmocka_unit_test(split_vocabulary_is_searched),
        cmocka_unit_test(split_vocabulary_of_a_frozen_head_is_never_planned),
        cmocka_unit_test(slices_are_planned_as_they_are_given),
        cmocka_unit_test(named_devices_of_the_same_cores_share_them),
        cmocka_unit_test(virtual_stages_are_searched),
        cmocka_unit_test(other_virtual_stages_are_no_reason),
        cmocka_unit_test(given_options_are_kept),
        cmocka_unit_test(another_batch_size_than_the_given_one_is_never_planned),
        cmocka_unit_test(plan_names_all_its_devices),
        cmocka_unit_test(machine_is_measured_once_for_each_number_of_devices),
        cmocka_unit_test(machine_is_measured_again_while_there_is_time),
        cmocka_unit_test(machine_times_hundreds_of_devices),
        cmocka_unit_test(what_fits_nowhere_is_one_error),
        cmocka_unit_test(micro_batches_are_as_small_as_memory_asks_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tables of files and threads change nothing: losses, gradient norms and evaluations of a run are
 * the same bits, given the same micro-batches. test_shards.c draws layouts. */
#include "small_run.h"

#include <math.h>
#include <string.h>

/* Every number that a run computes, in order. */
typedef struct trace {
    double numbers[2 * SMALL_MOST_STEPS + SMALL_MOST_EVALS];
    int count;
} trace;

static trace trace_run(const sl_train_options *options)
{
    static small_record record;
    trace made = {.count = 0};
    check_ok(small_run(options, &record));
    for (int i = 0; i < record.step_count; i++) {
        made.numbers[made.count++] = record.steps[i].loss;
        made.numbers[made.count++] = record.steps[i].grad_norm;
    }
    for (int i = 0; i < record.eval_count; i++)
        made.numbers[made.count++] = record.evals[i].loss;
    return made;
}

static void check_same(const trace *one, const trace *other, const char *what)
{
    assert_int_equal(one->count, other->count);
    for (int i = 0; i < one->count; i++)
        if (memcmp(&one->numbers[i], &other->numbers[i], sizeof one->numbers[i]) != 0)
            fail_msg("%s: number %d is %.17g, not %.17g", what, i, other->numbers[i],
                     one->numbers[i]);
}

/* ---- In both precisions ------------------------------------------------------------------- */

static void in_both_precisions(void (*check)(scratch *dir, sl_precision precision), scratch *dir)
{
    for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++)
        check(dir, precision);
}

/* Several stages a rank; and a table's first micro-batch, three times. */
static void check_table(scratch *dir, sl_precision precision)
{
    SCOPED(sl_schedule) *table = NULL;
    sl_train_options options = small_options(dir);
    options.precision = precision;
    options.model.nlayers = 4;
    options.model.tie = true;
    trace reference = trace_run(&options);
    sl_schedule_options of_table = {.ranks = 2, .micros = options.chunks};
    check_ok(sl_schedule_write("zb-v", &of_table, &table));
    options.pipeline_ranks = 2;
    options.schedule = "a table";
    options.table = table;
    trace other = trace_run(&options);
    check_same(&reference, &other, "a table");
    options.chunks = 1;
    options.accumulate = 3;
    other = trace_run(&options);
    check_same(&reference, &other, "a table's first micro-batch, three times");
}

static void losses_are_the_same_bits_by_a_table(void **state)
{
    in_both_precisions(check_table, *state);
}

/* Large enough that kernels are divided among several threads. */
static sl_train_options wide_options(scratch *dir, sl_precision precision)
{
    sl_train_options options = small_options(dir);
    options.precision = precision;
    options.model.emsize = 64;
    options.model.nhid = 128;
    options.batch_size = 20;
    options.bptt = 35;
    options.max_batches = 2;
    options.chunks = 2;
    options.lr.lr = 1e-3;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.1f};
    return options;
}

static void check_threads(scratch *dir, sl_precision precision)
{
    sl_train_options options = wide_options(dir, precision);
    char one[32];
    snprintf(one, sizeof one, "cpu:%d-%d", allowed_core(0), allowed_core(0));
    options.devices = one;
    trace one_thread = trace_run(&options);
    options.devices = "cpu";
    trace two_threads = trace_run(&options);
    check_same(&one_thread, &two_threads, "two threads");
}

static void losses_are_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)allowed_core(1); /* it takes two */
    in_both_precisions(check_threads, *state);
}

/* ---- What changes them --------------------------------------------------------------------- */

static void chunks_change_losses_by_rounding_only(void **state)
{
    sl_train_options options = small_options(*state);
    options.lr.lr = 0.5; /* so that rounding does not grow from step to step */
    trace reference = trace_run(&options);
    for (int chunks = 1; chunks <= 8; chunks++) {
        options.chunks = chunks;
        trace other = trace_run(&options);
        assert_int_equal(reference.count, other.count);
        for (int i = 0; i < reference.count; i++)
            if (!(fabs(other.numbers[i] / reference.numbers[i] - 1) < 1e-4))
                fail_msg("%d chunks: number %d is %.9g, not %.9g", chunks, i, other.numbers[i],
                         reference.numbers[i]);
    }
}

static void seed_decides_the_losses(void **state)
{
    sl_train_options options = small_options(*state);
    trace reference = trace_run(&options), again = trace_run(&options);
    check_same(&reference, &again, "the same run again");
    options.seed++;
    trace other = trace_run(&options);
    assert_true(other.numbers[0] != reference.numbers[0]);
}

int invariance_tests(void)
{
#define WITH_CORPUS(test) cmocka_unit_test_setup_teardown(test, small_corpus_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(losses_are_the_same_bits_by_a_table),
        WITH_CORPUS(losses_are_the_same_bits_for_any_number_of_threads),
        WITH_CORPUS(chunks_change_losses_by_rounding_only),
        WITH_CORPUS(seed_decides_the_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

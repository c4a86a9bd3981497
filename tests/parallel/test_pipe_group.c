/* Pipes whose stages are on several ranks of a group. Over processes: tests/comm/test_mpi.c. */
#include "device/device_base.h"
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_timeline.h"
#include "support/check.h"
#include "support/layouts.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };

static sl_status check_layout(sl_group *group, void *arg)
{
    return layout_check(group, *(const unsigned *)arg);
}

static void every_layout_gives_the_bits_of_one_stage(void **state)
{
    unsigned seed = test_seed(1);
    for (int i = 0; i < test_rounds(40); i++) {
        unsigned own = seed + (unsigned)i;
        check_ranks(check_layout, &own, 1 + i % 4);
    }
}

/* What a run of two steps saved after the first one, and what the second one gave. */
typedef struct saved_run {
    char path[64];
    double loss, norm;
} saved_run;

static sl_status take_step(const rig *r, double *loss, double *norm)
{
    SL_TRY(rig_train(r, loss));
    return sl_pipe_optimizer_step(r->optimizer, 0.01, 0.1, norm);
}

static sl_status open_linears(sl_group *group, rig *out)
{
    sl_pipe_options options = {
        .stages = RANKS, .chunks = 4, .no_init = group, .group = group, .seed = 1};
    return rig_open(rig_linears(RANKS), NULL,
                    &(sl_training_options){.pipe = options,
                                           .optimizer = {.kind = SL_OPTIMIZER_ADAMW}},
                    out);
}

static void save_run(saved_run *run)
{
    SCOPED(rig) at = {0};
    sl_checkpoint_part parts[2];
    check_ok(open_linears(NULL, &at));
    check_ok(take_step(&at, &run->loss, &run->norm));
    check_ok(sl_pipe_get_state(at.pipe, &parts[0]));
    check_ok(sl_pipe_optimizer_get_state(at.optimizer, &parts[1]));
    check_ok(
        sl_checkpoint_save(run->path, &(sl_checkpoint_contents){.parts = parts, .part_count = 2}));
    check_ok(take_step(&at, &run->loss, &run->norm));
}

static sl_status resume_run(sl_group *group, void *arg)
{
    const saved_run *run = arg;
    SCOPED(rig) at = {0};
    sl_checkpoint_reader *from = NULL;
    double loss = 0, norm = 0;
    SL_TRY(open_linears(group, &at));
    SL_TRY(sl_checkpoint_open(run->path, &from));
    SL_TRY(sl_pipe_load(at.pipe, from));
    SL_TRY(sl_pipe_optimizer_load(at.optimizer, from));
    SL_TRY(take_step(&at, &loss, &norm));
    SL_TRY(expect(loss == run->loss && norm == run->norm, "loss %a and norm %a, got %a %a",
                  run->loss, run->norm, loss, norm));
    sl_checkpoint_close(&from);
    return SL_OK;
}

static void ranks_load_their_own_stages_from_a_checkpoint(void **state)
{
    char folder[] = "/tmp/pipe-group-XXXXXX", command[64];
    saved_run run;
    assert_non_null(mkdtemp(folder));
    snprintf(run.path, sizeof run.path, "%s/saved", folder);
    save_run(&run);
    check_ranks(resume_run, &run, RANKS);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static sl_status expect_error(sl_status status, const char *text)
{
    char got[1024];
    snprintf(got, sizeof got, "%s", status == SL_OK ? "" : sl_error_text());
    return expect(strstr(got, text) != NULL, "\"%s\", got \"%s\"", text, got);
}

/* ---- The timeline ----------------------------------------------------------------------- */

enum { TIMED_STAGES = 4, TIMED_CHUNKS = 4 };

/* What each rank gathers. */
typedef struct gathered {
    sl_timeline_entry *entries;
    int count;
    double clock_error;
    sl_utilization utilization;
} gathered;

/* The last rank's argument is wrong in one call. */
static sl_status gather(const rig *r, bool is_last, gathered *out)
{
    double loss;
    sl_utilization none;
    SL_TRY(expect_error(sl_pipe_get_utilization(r->pipe, &none), "no training step has run"));
    for (int i = 0; i < 2; i++)
        SL_TRY(rig_train(r, &loss));
    SL_TRY(expect_error(sl_pipe_get_utilization(r->pipe, is_last ? NULL : &none), "out is NULL"));
    SL_TRY(sl_pipe_get_utilization(r->pipe, &out->utilization));
    return sli_pipe_gather_timeline(r->pipe, SL_OK, &out->entries, &out->count, &out->clock_error);
}

/* Rank 0 has two stages that are not neighbours. */
static sl_status gather_on_rank(sl_group *group, void *arg)
{
    static const int group_ranks[TIMED_STAGES] = {2, 0, 1, 0};
    gathered *all = arg;
    SCOPED(rig) at = {0};
    sl_pipe_options options = {.stages = TIMED_STAGES,
                               .chunks = TIMED_CHUNKS,
                               .schedule = "1f1b",
                               .group = group,
                               .group_ranks = group_ranks};
    SL_TRY(rig_open(rig_linears(TIMED_STAGES), NULL, &(sl_training_options){.pipe = options}, &at));
    int rank = sl_group_rank(group);
    return gather(&at, rank == RANKS - 1, &all[rank]);
}

static void every_rank_gets_the_timeline_of_all_on_one_clock(void **state)
{
    gathered all[RANKS] = {0};
    SCOPED(sl_schedule) *schedule = NULL;
    check_ranks(gather_on_rank, all, RANKS);
    check_ok(sl_schedule_write(
        "1f1b", &(sl_schedule_options){.ranks = TIMED_STAGES, .micros = TIMED_CHUNKS}, &schedule));
    check_ok(sl_schedule_recompute(schedule, SL_RECOMPUTE_EXCEPT_LAST));
    for (int r = 0; r < RANKS; r++) {
        sl_utilization *u = &all[r].utilization;
        assert_true(all[r].clock_error > 0 && all[r].clock_error < 1);
        assert_true(all[r].clock_error == all[0].clock_error);
        check_timeline(all[r].entries, all[r].count, schedule, TIMED_STAGES, all[r].clock_error);
        assert_memory_equal(all[r].entries, all[0].entries,
                            (size_t)all[0].count * sizeof *all[0].entries);
        assert_int_equal(u->ranks, TIMED_STAGES);
        assert_int_equal(u->action_count, all[r].count);
        assert_true(u->seconds == all[0].utilization.seconds);
        assert_true(u->predicted_seconds == all[0].utilization.predicted_seconds);
        int row = u->action_count / TIMED_STAGES; /* 1F0 comes a link's time after 0F0 */
        assert_true(u->predicted[row].start > u->predicted[0].end);
    }
    for (int r = 0; r < RANKS; r++) {
        free(all[r].entries);
        sl_utilization_clear(&all[r].utilization);
    }
}

/* ---- Errors ----------------------------------------------------------------------------- */

/* A pipe of three stages, one on each rank: a probe, a linear layer and a probe. */
static sl_status open_probed(sl_group *group, sl_group *replicas, probe probes[2], rig *out)
{
    sl_module *modules[RANKS] = {probe_module(&probes[0]), rig_linears(1),
                                 probe_module(&probes[1])};
    sl_module *model = new_sequential(modules, RANKS);
    const sl_training_options options = {
        .pipe = {.stages = RANKS, .chunks = 4, .recompute = SL_RECOMPUTE_NEVER, .group = group},
        .ddp = {.group = replicas, .shards = replicas ? 2 : 0}};
    return rig_open(model, NULL, &options, out);
}

/* Micro-batch 3 is the first under gpipe. Stages 0 and 2 fail at the same time of the table, and
 * the lower one counts. */
static sl_status fail_and_go_on(sl_group *group, void *arg)
{
    double loss;
    probe probes[2] = {{.fail_forward = 3}, {.fail_forward = 1}};
    SCOPED(rig) at = {0};
    SL_TRY(open_probed(group, NULL, probes, &at));
    SL_TRY(expect_error(rig_train(&at, &loss), "[stage 0 micro 1] 0 (Probe): "));
    probes[0].fail_forward = probes[1].fail_forward = 0;
    probes[1].fail_backward = 2;
    SL_TRY(expect_error(rig_train(&at, &loss), "[stage 2 micro 1] 2 (Probe): "));
    for (int i = 0; i < 3; i++)
        SL_TRY(rig_train(&at, &loss));
    return SL_OK;
}

static void error_of_a_stage_is_every_ranks_and_the_pipe_goes_on(void **state)
{
    for (int i = 0; i < 20; i++)
        check_ranks(fail_and_go_on, NULL, RANKS);
}

/* Of two replicas, the second one fails. The other one's ranks hear of it whether or not their own
 * stages exchange gradients. */
static sl_status fail_in_replica(sl_group *group, void *arg)
{
    double loss;
    int rank = sl_group_rank(group);
    probe probes[2] = {{0}, {.fail_backward = rank < RANKS ? 0 : 2}};
    SCOPED(sl_group) *replicas = NULL, *pipe_group = NULL;
    SCOPED(rig) at = {0};
    SL_TRY(sl_group_split(group, rank / RANKS, &pipe_group));
    SL_TRY(sl_group_split(group, rank % RANKS, &replicas));
    SL_TRY(open_probed(pipe_group, replicas, probes, &at));
    return expect_error(rig_train(&at, &loss), "[stage 2 micro 1] 2 (Probe): ");
}

static void error_of_a_replicas_stage_is_every_ranks(void **state)
{
    check_ranks(fail_in_replica, NULL, 2 * RANKS);
}

/* The last of RANKS stages has one parameter, which gets no gradient. */
static sl_status leave_unused(sl_group *group, void *arg)
{
    double loss;
    char text[96];
    SCOPED(sl_group) *replicas = NULL, *pipe_group = NULL;
    SCOPED(rig) at = {0};
    sl_module *model = rig_linears(RANKS - 1), *last = toy_module(&(toy_options){.skips_w = true});
    check_ok(sl_sequential_append(&model, SL_OK, &last));
    SL_TRY(sl_group_split(group, sl_group_rank(group) / RANKS, &pipe_group));
    SL_TRY(sl_group_split(group, sl_group_rank(group) % RANKS, &replicas));
    SL_TRY(rig_open(model, NULL,
                    &(sl_training_options){.pipe = {.stages = RANKS, .group = pipe_group},
                                           .ddp = {.group = replicas}},
                    &at));
    snprintf(text, sizeof text, "did not receive grad for rank %d: 0", sl_group_rank(replicas));
    SL_TRY(expect_error(rig_train(&at, &loss), text));
    return expect(strstr(sl_error_text(), "the first is 2.w;") != NULL, "2.w");
}

/* Its index counts the parameters of its own process, as PyTorch's does. */
static void unused_parameter_of_another_process_is_named(void **state)
{
    check_ranks(leave_unused, NULL, 2 * RANKS);
}

static sl_status refuse_conversion(sl_device *device, const sli_convert *arguments)
{
    return sl_error(SL_ERR_IO, "the device has fallen off the bus");
}

/* The last rank cannot convert its copy of the first one's weight. No rank waits for another. */
static sl_status fail_to_copy_weight(sl_group *group, void *arg)
{
    double loss;
    SCOPED(rig) at = {0};
    sl_module *model = rig_linears(RANKS);
    check_ok(sl_module_tie_parameter(model, "2.weight", "0.weight"));
    sl_pipe_options options = {.stages = RANKS, .group = group, .precision = SL_PRECISION_BF16};
    SL_TRY(rig_open(model, NULL, &(sl_training_options){.pipe = options}, &at));
    sl_device *last = sl_pipe_device(at.pipe, RANKS - 1);
    sli_device_ops refusing;
    if (last) {
        refusing = *last->ops;
        refusing.convert = refuse_conversion;
        last->ops = &refusing;
    }
    return expect_error(rig_train(&at, &loss), "fallen off the bus");
}

static void error_in_a_copy_of_a_tied_weight_is_every_ranks(void **state)
{
    sl_group_options options = {.timeout_seconds = 20};
    check_ok(sl_spawn(fail_to_copy_weight, NULL, RANKS, &options));
}

/* Ends the step on all ranks by an error that no rank has. */
static void stop_step(probe *p, int call)
{
    sl_pipe *pipe = p->arg;
    sli_failure_raise_elsewhere(&pipe->failure, 0);
    sli_link_send_failure(pipe->group->link, 0);
}

static sl_status stop_without_error(sl_group *group, void *arg)
{
    double loss;
    probe probes[2] = {{.on_forward = stop_step}};
    SCOPED(rig) at = {0};
    SL_TRY(open_probed(group, NULL, probes, &at));
    probes[0].arg = at.pipe;
    return expect_error(rig_train(&at, &loss), "was stopped without an error");
}

static void step_that_was_stopped_gives_no_loss(void **state)
{
    check_ranks(stop_without_error, NULL, RANKS);
}

static sl_status give_no_input(sl_group *group, void *arg)
{
    double loss;
    probe probes[2] = {0};
    SCOPED(rig) at = {0};
    sl_pipe_batch none = {0};
    SL_TRY(open_probed(group, NULL, probes, &at));
    SL_TRY(expect_error(sl_pipe_train(at.pipe, &none, &loss), "batch->input is NULL"));
    return rig_train(&at, &loss);
}

static void wrong_argument_of_one_rank_fails_on_all(void **state)
{
    check_ranks(give_no_input, NULL, RANKS);
}

/* One rank evaluates while the others train or run forward. The next step is like any other. */
typedef struct stray_call {
    int rank;
    bool others_train;
} stray_call;

static sl_status evaluate_on_one_rank(sl_group *group, void *arg)
{
    const stray_call *test = arg;
    double loss;
    int64_t terms;
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(rig) at = {0};
    sl_tensor *output;
    sl_shape shape = sl_shape_2d(8, 8);
    SL_TRY(open_linears(group, &at));
    SCOPED(sl_tensor) *rows = random_tensor(device, &shape, 1);
    sl_pipe_batch batch = {.input = rows, .targets = rows};
    sl_status status = sl_group_rank(group) == test->rank
                           ? sl_pipe_evaluate(at.pipe, &batch, &loss, &terms)
                       : test->others_train ? rig_train(&at, &loss)
                                            : sl_pipe_forward(at.pipe, &batch, &output);
    status = expect_error(status, "the ranks of a pipe call different functions");
    if (status == SL_OK)
        status = rig_train(&at, &loss);
    return status;
}

static void rank_that_calls_another_function_fails_all_at_once(void **state)
{
    sl_group_options options = {.timeout_seconds = 5};
    for (int i = 0; i < 2 * RANKS; i++)
        check_ok(
            sl_spawn(evaluate_on_one_rank, &(stray_call){i % RANKS, i < RANKS}, RANKS, &options));
}

/* Every rank's cache has the positions of a forward; one that has none fails on all. */
static sl_status continue_rows(sl_group *group, void *arg)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(rig) at = {0};
    sl_cache *caches[2] = {NULL};
    sl_tensor *output;
    sl_shape shape = sl_shape_3d(2, 3, 8);
    SL_TRY(open_linears(group, &at));
    for (int n = 0; n < 2; n++)
        check_ok(sl_cache_create(at.model, 5, &caches[n]));
    sl_pipe_batch batch = {.input = random_tensor(device, &shape, 1), .caches = caches};
    SCOPED(sl_tensor) *input = (sl_tensor *)batch.input;
    SL_TRY(sl_pipe_forward(at.pipe, &batch, &output));
    sl_tensor_destroy(&output);
    SL_TRY(expect(sl_cache_position(caches[1]) == 3, "expected 3 positions"));
    SL_TRY(expect_error(sl_pipe_forward(at.pipe, &batch, &output),
                        "the cache has 3 of 5 positions, so 3 more do not fit"));
    sl_cache *wrong[2] = {caches[0], sl_group_rank(group) == 1 ? NULL : caches[1]};
    sl_tensor_destroy(&input);
    shape = sl_shape_3d(2, 1, 8);
    batch.input = input = random_tensor(device, &shape, 1);
    batch.caches = wrong;
    SL_TRY(expect_error(sl_pipe_forward(at.pipe, &batch, &output),
                        "sl_pipe_forward: the cache of row 1 is NULL"));
    if (sl_group_rank(group) == 1)
        wrong[1] = wrong[0];
    SL_TRY(expect_error(sl_pipe_forward(at.pipe, &batch, &output),
                        "sl_pipe_forward: row 1 has the cache of a row before it"));
    batch.caches = sl_group_rank(group) == 1 ? NULL : caches;
    sl_status status = expect_error(sl_pipe_forward(at.pipe, &batch, &output),
                                    "either all ranks have a cache or none");
    sl_cache_destroy(&caches[0]);
    sl_cache_destroy(&caches[1]);
    return status;
}

static void cache_goes_on_over_the_ranks(void **state)
{
    check_ranks(continue_rows, NULL, RANKS);
}

/* Rank 1's pipe differs from the others'. */
static sl_status differ(sl_group *group, void *arg)
{
    bool first = arg != NULL, differs = sl_group_rank(group) == 1;
    SCOPED(rig) at = {0};
    sl_pipe_options options = {.stages = RANKS, .group = group, .seed = first && differs};
    sl_module *model = rig_linears(differs && !first ? RANKS + 1 : RANKS);
    const char *text = first ? "rank 1 has another seed than rank 0"
                             : "rank 1 has another balance or placement than rank 0";
    return expect_error(rig_open(model, NULL, &(sl_training_options){.pipe = options}, &at), text);
}

static void ranks_with_different_pipes_are_refused(void **state)
{
    int any;
    check_ranks(differ, &any, RANKS);
    check_ranks(differ, NULL, RANKS);
}

static sl_status spread_unevenly(sl_group *group, void *arg)
{
    SCOPED(sl_module) *model = rig_linears(4);
    sl_pipe *pipe;
    sl_pipe_options options = {.model = model, .stages = 4, .group = group};
    return expect_error(sl_pipe_create(&options, &pipe),
                        "the 4 pipeline ranks must be spread evenly over the 3 ranks");
}

static void ranks_that_cannot_be_spread_evenly_are_refused(void **state)
{
    check_ranks(spread_unevenly, NULL, RANKS);
}

/* ---- Ranks that leave or do not come ---------------------------------------------------- */

/* Rank 1, which has this name, leaves while the others take a step. Their pipes are broken for
 * good.
 */
static sl_status leave(sl_group *group, void *name)
{
    double loss;
    probe probes[2] = {0};
    SCOPED(rig) at = {0};
    sl_status status = open_probed(group, NULL, probes, &at);
    for (int i = 0; i < 2 && status == SL_OK && sl_group_rank(group) != 1; i++) {
        status = expect_error(rig_train(&at, &loss), name);
        if (status == SL_OK)
            status = expect_error(rig_train(&at, &loss), ", stage 1");
    }
    return status;
}

/* Rank 1 of each replica leaves, the second one with another number in the job. */
static sl_status leave_replica(sl_group *group, void *arg)
{
    static char names[2][32] = {"rank 1 on ", "rank 1 (4 of the job) on "};
    int replica = sl_group_rank(group) / RANKS;
    SCOPED(sl_group) *pipe_group = NULL;
    SL_TRY(sl_group_split(group, replica, &pipe_group));
    return leave(pipe_group, names[replica]);
}

/* Rank 2, which has no stage, leaves. */
static sl_status leave_without_stage(sl_group *group, void *arg)
{
    const int group_ranks[] = {0, 1};
    double loss;
    SCOPED(rig) at = {0};
    sl_pipe_options options = {.stages = 2, .group = group, .group_ranks = group_ranks};
    SL_TRY(rig_open(rig_linears(2), NULL, &(sl_training_options){.pipe = options}, &at));
    if (sl_group_rank(group) != 2)
        SL_TRY(expect_error(rig_train(&at, &loss), ", no stage"));
    return SL_OK;
}

static void rank_that_leaves_is_named_with_host_and_stage(void **state)
{
    check_ranks(leave, "rank 1 on ", RANKS);
    check_ranks(leave_replica, NULL, 2 * RANKS);
    check_ranks(leave_without_stage, NULL, RANKS);
}

typedef struct delay {
    atomic_int failed; /* ranks whose step has failed */
    bool between;      /* rank 2 waits before its step, else in it */
} delay;

static void wait_for_failures(delay *until)
{
    while (atomic_load(&until->failed) < RANKS - 1)
        sched_yield();
}

static void wait_in_forward(probe *p, int call)
{
    wait_for_failures(p->arg);
}

static sl_status be_late(sl_group *group, void *arg)
{
    delay *until = arg;
    bool waits = sl_group_rank(group) == 2;
    double loss;
    probe probes[2] = {{0}, {.arg = arg}};
    SCOPED(rig) at = {0};
    SL_TRY(open_probed(group, NULL, probes, &at));
    if (waits && until->between)
        wait_for_failures(until);
    else if (waits)
        probes[1].on_forward = wait_in_forward;
    SL_TRY(expect_error(rig_train(&at, &loss), "stage 2"));
    SL_TRY(expect_error(rig_train(&at, &loss), "rank 2 "));
    if (!waits)
        atomic_fetch_add(&until->failed, 1);
    return SL_OK;
}

static void rank_that_is_late_is_named_with_host_and_stage(void **state)
{
    sl_group_options options = {.timeout_seconds = 1.5};
    for (int between = 0; between < 2; between++) {
        delay until = {.between = between};
        check_ok(sl_spawn(be_late, &until, RANKS, &options));
    }
}

int pipe_group_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_gives_the_bits_of_one_stage),
        cmocka_unit_test(ranks_load_their_own_stages_from_a_checkpoint),
        cmocka_unit_test(every_rank_gets_the_timeline_of_all_on_one_clock),
        cmocka_unit_test(error_of_a_stage_is_every_ranks_and_the_pipe_goes_on),
        cmocka_unit_test(error_of_a_replicas_stage_is_every_ranks),
        cmocka_unit_test(unused_parameter_of_another_process_is_named),
        cmocka_unit_test(error_in_a_copy_of_a_tied_weight_is_every_ranks),
        cmocka_unit_test(step_that_was_stopped_gives_no_loss),
        cmocka_unit_test(wrong_argument_of_one_rank_fails_on_all),
        cmocka_unit_test(rank_that_calls_another_function_fails_all_at_once),
        cmocka_unit_test(cache_goes_on_over_the_ranks),
        cmocka_unit_test(ranks_with_different_pipes_are_refused),
        cmocka_unit_test(ranks_that_cannot_be_spread_evenly_are_refused),
        cmocka_unit_test(rank_that_leaves_is_named_with_host_and_stage),
        cmocka_unit_test(rank_that_is_late_is_named_with_host_and_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

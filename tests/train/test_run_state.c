/* What a run's checkpoint says beside its model: state.json, and the optimizer's state, which a
 * pipe's optimizer reads as well. */
#include "small_run.h"

#include "train/checkpoint/checkpoints.h"

/* Version 0.1.0 added gradients of micro-batches in the other order, and did not write which. */
static void state_says_in_which_order_gradients_were_added(void **state)
{
    (void)state;
    static const char old[] =
        "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,"
        "\"options\":{\"dp\":1,\"lr\":5.0},\"layout\":{}%s}";
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, old, "");
    check_ok(sli_run_state_read(text, &recorded));
    assert_false(recorded.ascends);
    snprintf(text, sizeof text, old, ",\"micro_batches\":\"ascending\"");
    check_ok(sli_run_state_read(text, &recorded));
    assert_true(recorded.ascends);
    assert_int_equal(recorded.chunks, 0);
}

/* Version 0.1.0 had a shard for each replica at the start, and added them in the order of ranks. */
static void state_says_how_many_shards_there_are(void **state)
{
    (void)state;
    static const char json[] =
        "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,"
        "\"options\":{\"%s\":%d,\"lr\":5.0},\"layout\":{}}";
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, json, "dp", 3);
    check_ok(sli_run_state_read(text, &recorded));
    assert_int_equal(recorded.shards, 3);
    assert_true(recorded.sums_by_ranks);
    snprintf(text, sizeof text, json, "shards", 4);
    check_ok(sli_run_state_read(text, &recorded));
    assert_int_equal(recorded.shards, 4);
    assert_false(recorded.sums_by_ranks);
    snprintf(text, sizeof text, json, "shards", 1025);
    check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                "\"shards\" of the run's options must be a whole number from 1 to 1024");
    snprintf(text, sizeof text, json, "others", 1);
    check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT, "\"dp\" of the run's");
}

static void chunks_of_a_state_are_checked(void **state)
{
    (void)state;
    static const char json[] =
        "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,"
        "\"options\":{\"dp\":1,\"lr\":5.0},\"layout\":{\"chunks\":%s}}";
    static const char *const wrong[] = {"0", "-1", "2.5", "\"8\"", "4097"};
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, json, "8");
    check_ok(sli_run_state_read(text, &recorded));
    assert_int_equal(recorded.chunks, 8);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, json, wrong[i]);
        check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                    "\"chunks\" of the run's layout must be a whole number from 1 to 4096");
    }
}

/* ---- Runs and pipes of one's own ------------------------------------------------------------ */

/* Loads a run's checkpoint into a pipe of one's own, and saves what that pipe has. */
static void save_again(const char *from, const char *to, sl_optimizer_options optimizer)
{
    sl_checkpoint_reader *reader;
    sl_checkpoint_part parts[2];
    sl_model_options options;
    sl_module *model;
    sl_loss *loss;
    sl_pipe_optimizer *state;
    check_ok(sl_weights_model(from, &options));
    check_ok(sl_transformer_lm_create(&options, &model));
    check_ok(sl_cross_entropy_create(&loss));
    test_pipe at = open_pipe(model, loss, (sl_pipe_options){.stages = 2}, 2, 1);
    check_ok(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at.pipe,
                                                                   .optimizer = optimizer},
                                      &state));
    check_ok(sl_checkpoint_open(from, &reader));
    check_ok(sl_pipe_get_state(at.pipe, &parts[0]));
    check_ok(sl_checkpoint_read(reader, "model", parts[0].items, parts[0].count));
    check_ok(sl_pipe_optimizer_load(state, reader));
    check_ok(sl_pipe_optimizer_get_state(state, &parts[1]));
    const sl_safetensors_item *last = &parts[1].items[parts[1].count - 1];
    assert_non_null(strstr(last->name, ".step"));
    assert_int_equal(*(const int64_t *)last->data, 2);
    check_ok(
        sl_checkpoint_save(to, &(sl_checkpoint_contents){.parts = parts,
                                                         .part_count = 2,
                                                         .state = sl_checkpoint_state(reader)}));
    sl_checkpoint_close(&reader);
    sl_pipe_optimizer_destroy(&state);
    close_pipe(&at);
}

/* A run saves after two steps, a pipe of one's own reads that and saves it, and a run resumes. */
static void check_exchange(scratch *in, int replicas, bool zero)
{
    static small_record whole, first, second;
    char run[512], saved[512], newest[512], line[1200];
    sl_train_options options = small_options(in);
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.lr.lr = 0.01;
    options.replicas = replicas;
    options.zero = zero;
    check_ok(small_run(&options, &whole));
    snprintf(run, sizeof run, "%s", scratch_path(in, "run"));
    snprintf(saved, sizeof saved, "%s", scratch_path(in, "saved"));
    snprintf(newest, sizeof newest, "%s", scratch_path(in, "run/step-00000002"));
    options.checkpoints = (sl_save_options){.directory = run, .every_steps = 2};
    check_ok(small_run(&options, &first));
    save_again(newest, saved, options.optimizer);
    options.checkpoints = (sl_save_options){.resume = saved};
    check_ok(small_run(&options, &second));
    first.step_count = 2;
    first.eval_count = 0;
    check_continued(&first, &second, &whole);
    snprintf(line, sizeof line, "rm -rf '%s' '%s'", run, saved);
    assert_int_equal(system(line), 0);
}

static void runs_and_pipes_read_each_others_optimizer_state(void **state)
{
    check_exchange(*state, 1, false);
    check_exchange(*state, 2, false);
    check_exchange(*state, 2, true);
}

int run_state_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_says_in_which_order_gradients_were_added),
        cmocka_unit_test(state_says_how_many_shards_there_are),
        cmocka_unit_test(chunks_of_a_state_are_checked),
        cmocka_unit_test(runs_and_pipes_read_each_others_optimizer_state),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, scratch_remove);
}

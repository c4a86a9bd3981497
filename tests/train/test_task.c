/* Runs of a model and data of one's own. */
#include "device/device_base.h"
#include "small_run.h"
#include "train/plan/profile.h"

#include <math.h>
#include <unistd.h>

enum { ROWS = 7, BATCHES = 4, CLASSES = 3, HIDDEN = 8 };

/* What the task of a test does; its functions are called by several replicas at once. */
typedef struct own_task {
    int64_t batches[SL_SPLITS];
    int64_t failing_batch; /* of the training data, from 0; -1: none */
    int64_t extra_rows;    /* more than asked for */
    bool gives_nothing;    /* no rows at all, and no error */
    int *counted;          /* [SL_SPLITS] how often: from the second time on there are no batches;
                              NULL: as many each time */
} own_task;

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_module *layer;
    SL_TRY(sl_sequential_append(model, sl_linear_create(2, HIDDEN, false, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_activation_create(SL_ACTIVATION_GELU, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_dropout_create(0.2f, &layer), &layer));
    SL_TRY(sl_sequential_append(model, sl_linear_create(HIDDEN, CLASSES, false, &layer), &layer));
    return sl_cross_entropy_create(loss);
}

static sl_status count_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    const own_task *task = context;
    *batches = rows > 0 ? task->batches[split] : -1;
    if (task->counted && task->counted[split]++ > 0)
        *batches = 0;
    return SL_OK;
}

/* In which third of a circle does a point lie? */
static sl_status load_rows(void *context, const sl_train_rows *rows, sl_device *input_device,
                           sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    const own_task *task = context;
    int64_t count = rows->count + task->extra_rows;
    sl_shape points = sl_shape_2d(count, 2), classes = sl_shape_1d(count);
    if (task->gives_nothing)
        return SL_OK;
    SL_TRY(sl_tensor_create(input_device, SL_MEMORY_WORKSPACE, SL_F32, &points, input));
    SL_TRY(sl_tensor_create(target_device, SL_MEMORY_WORKSPACE, SL_I32, &classes, targets));
    if (rows->split == SL_SPLIT_TRAIN && rows->batch == task->failing_batch)
        return sl_error(SL_ERR_IO, "batch %d cannot be read", (int)rows->batch);
    for (int64_t i = 0; i < count; i++) {
        int64_t point = sl_train_sample(rows, i);
        double angle = fmod((double)(point + 1000 * (int)rows->split) * 0.6180339887, 1);
        sl_tensor_f32(*input)[2 * i] = cosf(6.2831853f * (float)angle);
        sl_tensor_f32(*input)[2 * i + 1] = sinf(6.2831853f * (float)angle);
        sl_tensor_i32(*targets)[i] = (int32_t)(CLASSES * angle);
    }
    return SL_OK;
}

static const own_task normal = {.batches = {BATCHES, 3, 2}, .failing_batch = -1};

static sl_train_task make_task(const own_task *does)
{
    return (sl_train_task){.context = (void *)does,
                           .create_model = create_model,
                           .count_batches = count_batches,
                           .load_rows = load_rows,
                           .data = {"points"}};
}

static sl_train_options options_of(const sl_train_task *task)
{
    sl_train_options options;
    sl_train_options_default(&options);
    options.task = task;
    options.batch_size = options.eval_batch_size = ROWS;
    options.chunks = 3;
    options.epochs = 2;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.lr.lr = 0.01;
    return options;
}

static void task_has_no_default_rate_for_sgd(void **state)
{
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    options.lr.lr = SL_LR_DEFAULT;
    check_ok(sl_train_options_check(&options));
    options.optimizer.kind = SL_OPTIMIZER_SGD;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "sgd has no default learning rate for a task: set lr.lr");
    options.lr.lr = 0.1;
    check_ok(sl_train_options_check(&options));
}

/* ---- Results ------------------------------------------------------------------------------ */

static void check_same_records(const small_record *got, const small_record *expected)
{
    static const small_record nothing;
    check_continued(&nothing, got, expected);
}

static void own_model_has_the_same_bits_in_any_cut(void **state)
{
    static small_record whole, cut;
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    check_ok(small_run(&options, &whole));
    assert_int_equal(whole.step_count, 2 * BATCHES);
    assert_int_equal(whole.eval_count, 3);
    assert_int_equal(whole.steps[0].tokens, ROWS);
    assert_int_equal(whole.evals[0].tokens, 3 * ROWS);
    assert_true(whole.evals[1].loss < whole.evals[0].loss);
    for (options.pipeline_ranks = 2; options.pipeline_ranks <= 4; options.pipeline_ranks++) {
        check_ok(small_run(&options, &cut));
        check_same_records(&cut, &whole);
    }
    options.pipeline_ranks = 2;
    options.balance_kind = SL_BALANCE_AUTO;
    check_ok(small_run(&options, &cut));
    check_same_records(&cut, &whole);
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = 2;
    options.balance[0] = 1;
    options.balance[1] = 3;
    check_ok(small_run(&options, &cut));
    check_same_records(&cut, &whole);
}

/* Two replicas divide the rows of the same batches. */
static void replicas_have_the_bits_of_one(void **state)
{
    static small_record whole, divided;
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    options.shards = 3;
    check_ok(small_run(&options, &whole));
    options.replicas = 2;
    options.zero = true;
    check_ok(small_run(&options, &divided));
    check_same_records(&divided, &whole);
}

static void run_without_validation_and_test_saves_its_last_weights(void **state)
{
    static small_record record;
    const own_task trains = {.batches = {BATCHES, 0, 0}, .failing_batch = -1};
    sl_train_task task = make_task(&trains);
    sl_train_options options = options_of(&task);
    options.save = scratch_path(*state, "own");
    check_ok(small_run(&options, &record));
    assert_int_equal(record.step_count, 2 * BATCHES);
    assert_int_equal(record.eval_count, 0);
    assert_true(isinf(record.result.best_valid_loss) && isnan(record.result.test_loss));
    assert_true(record.result.saved);
    assert_int_equal(record.result.saved_step, 2 * BATCHES);
    options.init = options.save;
    options.save = NULL;
    options.lr.lr = 0;
    double first = record.steps[0].loss;
    check_ok(small_run(&options, &record));
    assert_true(record.steps[0].loss < first);
}

/* ---- Interruptions ------------------------------------------------------------------------ */

typedef struct stopper {
    int asked, at;
} stopper;

static unsigned stop_when_asked(void *context)
{
    stopper *stop = context;
    return ++stop->asked == stop->at ? SL_TRAIN_STOP : SL_TRAIN_GO_ON;
}

/* After every step, validation and batch of one, until a run comes to its end. */
static void interrupted_run_has_the_bits_of_a_whole_one(void **state)
{
    static small_record whole, first, second;
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    char directory[512];
    snprintf(directory, sizeof directory, "%s", scratch_path(*state, "checkpoints"));
    check_ok(small_run(&options, &whole));
    first.finished = 0;
    for (int at = 1; at < 40 && !first.finished; at++) {
        stopper stop = {.at = at};
        options.pipeline_ranks = 1 + at % 2;
        options.checkpoints =
            (sl_save_options){.directory = directory, .request = stop_when_asked, .context = &stop};
        check_ok(small_run(&options, &first));
        options.checkpoints = (sl_save_options){.directory = directory, .resume = directory};
        if (!first.finished) {
            check_ok(small_run(&options, &second));
            check_continued(&first, &second, &whole);
        }
        scratch_remove_tree(*state, "checkpoints");
    }
    assert_true(first.finished);
}

static void run_resumes_with_its_own_data_alone(void **state)
{
    static small_record record;
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    char directory[512];
    snprintf(directory, sizeof directory, "%s", scratch_path(*state, "checkpoints"));
    options.checkpoints.directory = directory;
    check_ok(small_run(&options, &record));
    task.data[SL_SPLIT_TRAIN] = "other points";
    options.checkpoints.resume = directory;
    check_error(small_run(&options, &record), SL_ERR_INVALID,
                "the checkpoint was made with train data \"points\", this run has train data "
                "\"other points\"");
    scratch_remove_tree(*state, "checkpoints");
}

/* A run log does not claim a language model's sizes, and a run resumes with any others. */
static void options_of_a_language_play_no_part(void **state)
{
    static small_record record;
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    sl_run_log *log;
    sl_run_result result;
    char directory[512], text[16384];
    snprintf(directory, sizeof directory, "%s", scratch_path(*state, "checkpoints"));
    options.checkpoints.directory = directory;
    check_ok(sl_run_log_create(scratch_path(*state, "log"), NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    sl_run_log_destroy(&log);
    text[read_file(scratch_path(*state, "log"), text, sizeof text - 1)] = '\0';
    assert_non_null(strstr(text, "\"batch_size\":"));
    static const char *const keys[] = {"\"emsize\"", "\"nhead\"", "\"ntokens\"", "\"bptt\"",
                                       "\"tie\""};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_null(strstr(text, keys[i]));
    options.model.emsize = 64;
    options.bptt = 12;
    options.checkpoints.resume = directory;
    check_ok(small_run(&options, &record));
    assert_int_equal(record.step_count, 0);
    assert_int_equal(remove(scratch_path(*state, "log")), 0);
    scratch_remove_tree(*state, "checkpoints");
}

/* ---- Errors ------------------------------------------------------------------------------- */

static void check_refused(own_task does, int replicas, sl_status status, const char *text)
{
    static small_record record;
    sl_train_task task = make_task(&does);
    sl_train_options options = options_of(&task);
    options.replicas = replicas;
    check_error(small_run(&options, &record), status, text);
}

static void incomplete_task_is_refused(void **state)
{
    static small_record record;
    sl_train_task task = make_task(&normal);
    const sl_train_options options = options_of(&task);
    task.create_model = NULL;
    check_error(small_run(&options, &record), SL_ERR_INVALID, "task->create_model is NULL");
    task = make_task(&normal);
    task.count_batches = NULL;
    check_error(small_run(&options, &record), SL_ERR_INVALID, "task->count_batches is NULL");
    task = make_task(&normal);
    task.load_rows = NULL;
    check_error(small_run(&options, &record), SL_ERR_INVALID, "task->load_rows is NULL");
}

/* The model is narrow in the middle, which is where a slow link is crossed. */
static sl_status create_hourglass(void *context, sl_module **model, sl_loss **loss)
{
    static const int widths[] = {2, HIDDEN, 1, HIDDEN, CLASSES};
    for (int i = 0; i < 4; i++) {
        sl_module *layer;
        SL_TRY(sl_sequential_append(model,
                                    sl_linear_create(widths[i], widths[i + 1], false, &layer),
                                    &layer));
    }
    return sl_cross_entropy_create(loss);
}

/* The seconds of a step of two stages, on two devices of the same core. */
static double profile_hourglass(const sl_link_cost *links, sl_module_profile *profiles,
                                int *balance)
{
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    sl_module *model = NULL;
    sl_loss *loss = NULL;
    sl_device_list *devices;
    int cores[2];
    sli_step_times times;
    sl_plan *plan;
    options.pipeline_ranks = options.shards = 2;
    options.balance_kind = SL_BALANCE_AUTO;
    options.recompute = SL_RECOMPUTE_NEVER;
    check_ok(create_hourglass(NULL, &model, &loss));
    check_ok(sl_device_list_create("cpu,cpu", &devices, NULL));
    check_ok(sl_plan_create(&options, NULL, NULL, NULL, &plan));
    check_ok(sli_find_cores(plan, devices, NULL, cores));
    check_ok(sli_profile_model(&(sli_profile_inputs){.plan = plan,
                                                     .task = &task,
                                                     .model = model,
                                                     .loss = loss,
                                                     .devices = devices,
                                                     .links = links,
                                                     .cores = cores},
                               profiles, balance, &times));
    sl_plan_destroy(&plan);
    sl_device_list_destroy(&devices);
    sl_module_destroy(&model);
    sl_loss_destroy(&loss);
    assert_true(times.one_stage > 0 && times.one_stage < 1.0001 * times.cut); /* on the same core */
    return times.cut;
}

static void cut_by_time_counts_what_a_slow_link_takes(void **state)
{
    sl_link_cost links[2][2] = {{{0}}}; /* a float more takes seconds, a module microseconds */
    int balance[SL_MAX_STAGES];
    links[0][1].seconds_per_byte = links[1][0].seconds_per_byte = 1;
    double seconds = profile_hourglass(&links[0][0], NULL, balance);
    assert_int_equal(balance[0], 2);
    assert_true(seconds > 2 * 3 * sizeof(float)); /* there and back, a micro-batch's 3 rows */
}

/* All of the step's actions, one after the other. */
static void step_on_shared_cores_takes_the_sum_of_its_actions(void **state)
{
    enum { MODULES = 4, MICROS = 3 };
    sl_module_profile profiles[MODULES];
    int balance[SL_MAX_STAGES];
    double sum = 0, seconds = profile_hourglass(NULL, profiles, balance);
    for (int i = 0; i < MODULES; i++)
        sum += MICROS * (profiles[i].forward + profiles[i].backward);
    assert_float_equal(seconds, sum, 1e-6 * sum);
}

/* A module whose calls take a known time; where they are divided among the device's threads, less.
 */
typedef struct timed_work {
    bool is_divided;
    bool shares;      /* what the run has chosen */
    double one_stage; /* what its profile says */
} timed_work;

static void work(const sl_module *module, sl_pass *pass)
{
    const bool *is_divided = sl_module_state(module);
    usleep(4000 / (useconds_t)(*is_divided ? sl_device_thread_count(sl_pass_device(pass)) : 1));
}

static sl_status work_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                              sl_tensor **out)
{
    work(module, pass);
    return sl_tensor_alias(in, out);
}

static sl_status work_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                               sl_tensor **grad_in)
{
    work(module, pass);
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static sl_status create_works(void *context, sl_module **model, sl_loss **loss)
{
    static const sl_module_ops ops = {.type = "Work",
                                      .forward = work_forward,
                                      .backward = work_backward};
    sl_module *layer;
    SL_TRY(sl_sequential_append(model, sl_linear_create(2, CLASSES, false, &layer), &layer));
    for (int i = 0; i < 2; i++) {
        bool *is_divided = malloc(sizeof *is_divided); /* the module's */
        assert_non_null(is_divided);
        *is_divided = ((const timed_work *)context)->is_divided;
        SL_TRY(sl_sequential_append(model, sl_module_create(&ops, is_divided, &layer), &layer));
    }
    return sl_cross_entropy_create(loss);
}

static sl_status load_for_works(void *context, const sl_train_rows *rows, sl_device *input_device,
                                sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    return load_rows((void *)&normal, rows, input_device, target_device, input, targets);
}

static sl_status count_no_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    *batches = split == SL_SPLIT_TRAIN;
    return SL_OK;
}

static sl_status note_devices(void *context, const sl_run_info *info)
{
    timed_work *timed = context;
    timed->shares = strcmp(sl_device_name(sl_pipe_device(info->pipe, 0)), "cpu") == 0;
    timed->one_stage = info->one_stage;
    return SL_OK;
}

static void run_two_stages(timed_work *timed, int chunks)
{
    const sl_train_task task = {.context = timed,
                                .create_model = create_works,
                                .count_batches = count_no_batches,
                                .load_rows = load_for_works};
    const sl_reporter reporter = {.context = timed, .started = note_devices};
    sl_train_options options = options_of(&task);
    sl_run_result result;
    options.pipeline_ranks = 2;
    options.balance_kind = SL_BALANCE_AUTO;
    options.epochs = 1;
    options.recompute = SL_RECOMPUTE_NEVER;
    options.chunks = chunks;
    check_ok(sl_train_run(&options, &reporter, 1, &result));
}

/* Of three micro-batches two stages take four times that of one on cores of their own, and six
 * times where they share them, as one stage does. Of one, nothing overlaps, and work that is
 * divided among more cores is done sooner, in one stage as in two. */
static void ranks_without_devices_take_the_faster_of_split_and_shared_cores(void **state)
{
    timed_work own = {.is_divided = false, .shares = true}, shared = {.is_divided = true};
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        print_message("skipped: there is one core\n");
        skip();
    }
    run_two_stages(&own, 3);
    assert_false(own.shares);
    assert_true(own.one_stage > 1.1);
    run_two_stages(&shared, 1);
    assert_true(shared.shares);
    assert_true(shared.one_stage > 0.9 && shared.one_stage < 1.1);
}

enum { LINK_RANKS = 3 };

/* What each of the ranks has found, which are threads: the test itself checks it. */
typedef struct found_links {
    const sl_plan *plan;
    int cores[LINK_RANKS][LINK_RANKS];
    sl_link_cost *links[LINK_RANKS]; /* [LINK_RANKS][LINK_RANKS] */
} found_links;

/* Three ranks in a loop of two stages each. The last two compute on the same cores. */
static sl_status measure_links(sl_group *group, void *context)
{
    found_links *found = context;
    int rank = sl_group_rank(group);
    sl_device_list *devices;
    SL_TRY(sl_device_list_create("cpu", &devices, NULL));
    sl_device_list_get(devices, 0)->core_set = rank == 0 ? 7 : 5;
    sl_status status = sli_find_cores(found->plan, devices, group, found->cores[rank]);
    sl_device_list_destroy(&devices);
    SL_TRY(status);
    return sli_measure_links(found->plan, group, &found->links[rank]);
}

static void check_links(const sl_link_cost *links)
{
    for (int a = 0; a < LINK_RANKS; a++)
        for (int b = 0; b < LINK_RANKS; b++) {
            const sl_link_cost *one = &links[a * LINK_RANKS + b];
            assert_true(a == b ? one->seconds == 0 : one->seconds > 0);
            assert_true(one->seconds_per_byte >= 0);
            assert_memory_equal(one, &links[b * LINK_RANKS + a], sizeof *one);
        }
}

static void links_and_cores_are_the_same_on_all_ranks(void **state)
{
    sl_train_task task = make_task(&normal);
    sl_train_options options = options_of(&task);
    found_links found = {NULL};
    sl_plan *plan;
    options.replicas = 1;
    options.pipeline_ranks = LINK_RANKS;
    options.schedule = "interleaved";
    options.virtual_stages = 2;
    check_ok(sl_plan_create(&options, &(sl_train_launch){.ranks = LINK_RANKS}, NULL, NULL, &plan));
    found.plan = plan;
    check_ok(sl_spawn(measure_links, &found, LINK_RANKS, NULL));
    sl_plan_destroy(&plan);
    for (int rank = 0; rank < LINK_RANKS; rank++) {
        const int *cores = found.cores[rank];
        assert_true(cores[0] == 0 && cores[1] == 1 && cores[2] == 1);
        check_links(found.links[rank]);
        assert_memory_equal(found.links[rank], found.links[0],
                            LINK_RANKS * LINK_RANKS * sizeof *found.links[0]);
    }
    for (int rank = 0; rank < LINK_RANKS; rank++)
        free(found.links[rank]);
}

/* The rows of a profile, which such a run begins with, are checked as those of a step. */
static void profiled_task_must_give_its_rows(void **state)
{
    static small_record record;
    own_task gives_nothing = normal;
    gives_nothing.gives_nothing = true;
    sl_train_task task = make_task(&gives_nothing);
    sl_train_options options = options_of(&task);
    options.pipeline_ranks = 2;
    options.balance_kind = SL_BALANCE_AUTO;
    check_error(small_run(&options, &record), SL_ERR_INVALID,
                "the task's load_rows was asked for 2 rows, and its input has 0");
}

/* Its answer may change, where data grow. */
static void batches_are_counted_once(void **state)
{
    static small_record record;
    int counted[SL_SPLITS] = {0};
    own_task once = normal;
    once.counted = counted;
    const sl_train_task task = make_task(&once);
    const sl_train_options options = options_of(&task);
    check_ok(small_run(&options, &record));
    assert_int_equal(record.eval_count, 3);
    assert_int_equal(record.evals[0].tokens, 3 * ROWS);
}

static void errors_of_a_task_end_the_run(void **state)
{
    own_task fails = normal, gives_more = normal, is_empty = normal, is_negative = normal;
    fails.failing_batch = 2;
    gives_more.extra_rows = 1;
    is_empty.batches[SL_SPLIT_TRAIN] = 0;
    is_negative.batches[SL_SPLIT_VALID] = -1;
    for (int replicas = 1; replicas <= 2; replicas++) {
        check_refused(fails, replicas, SL_ERR_IO, "batch 2 cannot be read");
        check_refused(gives_more, replicas, SL_ERR_INVALID,
                      "the task's load_rows was asked for 7 rows, and its input has 8");
        check_refused(is_empty, replicas, SL_ERR_INVALID, "there are no data to train on");
        check_refused(is_negative, replicas, SL_ERR_INVALID,
                      "the task's count_batches gave -1 batches of the split valid");
    }
}

#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)

int task_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(task_has_no_default_rate_for_sgd),
        cmocka_unit_test(own_model_has_the_same_bits_in_any_cut),
        cmocka_unit_test(replicas_have_the_bits_of_one),
        IN_SCRATCH(run_without_validation_and_test_saves_its_last_weights),
        IN_SCRATCH(interrupted_run_has_the_bits_of_a_whole_one),
        IN_SCRATCH(run_resumes_with_its_own_data_alone),
        IN_SCRATCH(options_of_a_language_play_no_part),
        cmocka_unit_test(incomplete_task_is_refused),
        cmocka_unit_test(cut_by_time_counts_what_a_slow_link_takes),
        cmocka_unit_test(step_on_shared_cores_takes_the_sum_of_its_actions),
        cmocka_unit_test(ranks_without_devices_take_the_faster_of_split_and_shared_cores),
        cmocka_unit_test(links_and_cores_are_the_same_on_all_ranks),
        cmocka_unit_test(profiled_task_must_give_its_rows),
        cmocka_unit_test(batches_are_counted_once),
        cmocka_unit_test(errors_of_a_task_end_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

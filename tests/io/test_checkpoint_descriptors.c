/* Checkpoints of many files: what stays open is read though another checkpoint has its name, and
 * where few files may be open the others are opened again. */
#include "scratch.h"

#include "core/file.h"
#include "io/checkpoint/format.h"
#include "support/check.h"

#include <fcntl.h>
#include <sys/resource.h>

enum { TENSORS = 40, FILES = TENSORS + 3 /* two texts and an index */ };

typedef struct sample {
    float values[TENSORS];
    char names[TENSORS][12];
    sl_safetensors_item items[TENSORS];
} sample;

static void sample_fill(sample *filled, float first)
{
    for (int t = 0; t < TENSORS; t++) {
        filled->values[t] = first + (float)t;
        snprintf(filled->names[t], sizeof filled->names[t], "%d", t);
        filled->items[t] =
            (sl_safetensors_item){filled->names[t], SL_F32, sl_shape_1d(1), &filled->values[t]};
    }
}

/* Saves a checkpoint with each tensor in a file of its own, and two texts. */
static void save_sample(const char *path, float first, const char *text)
{
    sample made;
    sample_fill(&made, first);
    const sl_checkpoint_part part = {"model", made.items, TENSORS, NULL, 0};
    const sl_checkpoint_file texts[] = {{"one.txt", text, strlen(text)},
                                        {"two.txt", text, strlen(text)}};
    check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &part,
                                                                .part_count = 1,
                                                                .files = texts,
                                                                .file_count = 2,
                                                                .shard_bytes = 1}));
}

static int open_files(void)
{
    int count = 0;
    DIR *list = opendir("/proc/self/fd");
    assert_non_null(list);
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

static void check_values(sl_checkpoint_reader *reader, float first)
{
    sample back;
    char *text;
    size_t bytes;
    sample_fill(&back, -1000);
    check_ok(sl_checkpoint_verify(reader));
    check_ok(sl_checkpoint_read(reader, "model", back.items, TENSORS));
    for (int t = 0; t < TENSORS; t++)
        assert_float_equal(back.values[t], first + (float)t, 0);
    check_ok(sli_checkpoint_read_file(reader, "two.txt", &text, &bytes));
    assert_string_equal(text, "old");
    free(text);
}

static void all_files_are_read_though_the_checkpoint_is_replaced(void **state)
{
    sl_checkpoint_reader *reader;
    char *path = strdup(scratch_path(*state, "many"));
    save_sample(path, 0, "old");
    int before = open_files();
    check_ok(sl_checkpoint_open(path, &reader));
    assert_int_equal(sl_checkpoint_file_count(reader), FILES);
    assert_int_equal(open_files(), before + FILES);
    save_sample(path, 500, "new");
    check_values(reader, 0);
    sl_checkpoint_close(&reader);
    assert_int_equal(open_files(), before);
    assert_true(sli_directory_remove(AT_FDCWD, path));
    free(path);
}

static void limit_files(rlim_t files)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = files < limit.rlim_max ? files : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Also after a test that has failed with few files. */
static int remove_without_limit(void **state)
{
    limit_files(RLIM_INFINITY);
    return scratch_remove(state);
}

static void half_of_the_files_that_may_be_open_are_left_to_others(void **state)
{
    enum { MOST = 32 };
    sl_checkpoint_reader *first, *second;
    char *path = strdup(scratch_path(*state, "many"));
    save_sample(path, 0, "old");
    limit_files(MOST);
    check_ok(sl_checkpoint_open(path, &first));
    int kept = open_files();
    check_ok(sl_checkpoint_open(path, &second));
    assert_in_range(kept, MOST / 2, MOST / 2 + 4); /* ".", "..", the list itself, one above */
    assert_int_equal(open_files(), kept);
    check_values(first, 0);
    check_values(second, 0);
    save_sample(path, 500, "new");
    check_error(sl_checkpoint_verify(second), SL_ERR_IO,
                "the file was replaced by another while it was read");
    sl_checkpoint_close(&first);
    sl_checkpoint_close(&second);
    assert_true(sli_directory_remove(AT_FDCWD, path));
    free(path);
}

static void average_of_more_files_than_may_be_open(void **state)
{
    enum { TIMES = 20 };
    const char *from[TIMES];
    sl_checkpoint_reader *reader;
    char *path = strdup(scratch_path(*state, "many")), *mean = strdup(scratch_path(*state, "mean"));
    save_sample(path, 3, "old");
    for (int i = 0; i < TIMES; i++)
        from[i] = path;
    limit_files(24);
    check_ok(sl_checkpoint_average(from, TIMES, mean, 1));
    limit_files(RLIM_INFINITY);
    check_ok(sl_checkpoint_open(mean, &reader));
    check_values(reader, 3);
    sl_checkpoint_close(&reader);
    assert_true(sli_directory_remove(AT_FDCWD, path));
    assert_true(sli_directory_remove(AT_FDCWD, mean));
    free(path);
    free(mean);
}

int checkpoint_descriptors_tests(void)
{
#define WITH_SCRATCH(test)                                                                         \
    cmocka_unit_test_setup_teardown(test, scratch_create, remove_without_limit)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(all_files_are_read_though_the_checkpoint_is_replaced),
        WITH_SCRATCH(half_of_the_files_that_may_be_open_are_left_to_others),
        WITH_SCRATCH(average_of_more_files_than_may_be_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

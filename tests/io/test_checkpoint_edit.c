/* Checkpoints made from checkpoints: with less memory than they have bytes, and only from whole
 * ones. What comes out is compared in tests/cli/test_cmd_checkpoint.c too. */
#include "io/scratch.h"
#include "sluice/checkpoint.h"
#include "support/check.h"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { TENSORS = 16, ELEMENTS = 1 << 19, MEGABYTE = 1 << 20 };

/* Sanitizers take memory of their own. */
static const bool memory_is_ours = !IS_SANITIZED;

/* 32 MiB of tensors, whose elements are `base` and what they are counted by. */
static void write_large(const char *path, float base)
{
    static char names[TENSORS][24];
    sl_safetensors_item items[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        float *data = malloc(ELEMENTS * sizeof *data);
        assert_non_null(data);
        for (int i = 0; i < ELEMENTS; i++)
            data[i] = base + (float)(t + i);
        snprintf(names[t], sizeof names[t], "%d.weight", t);
        items[t] = (sl_safetensors_item){names[t], SL_F32, {.dims = 1, .size = {ELEMENTS}}, data};
    }
    const sl_checkpoint_part part = {.name = "model", .items = items, .count = TENSORS};
    check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &part, .part_count = 1}));
    for (int t = 0; t < TENSORS; t++)
        free(items[t].data);
}

static void check_large(const char *path, float base)
{
    sl_checkpoint_reader *reader;
    FREED float *data = malloc((size_t)TENSORS * ELEMENTS * sizeof *data);
    char names[TENSORS][24];
    sl_safetensors_item items[TENSORS];
    assert_non_null(data);
    for (int t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "%d.weight", t);
        items[t] = (sl_safetensors_item){names[t],
                                         SL_F32,
                                         {.dims = 1, .size = {ELEMENTS}},
                                         data + (size_t)t * ELEMENTS};
    }
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_read(reader, "model", items, TENSORS));
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < ELEMENTS; i++)
            if (data[(size_t)t * ELEMENTS + (size_t)i] != base + (float)(t + i))
                fail_msg("element %d of tensor %d is %g", i, t,
                         (double)data[(size_t)t * ELEMENTS + (size_t)i]);
    sl_checkpoint_close(&reader);
}

/* The private memory of this process. */
static rlim_t data_bytes(void)
{
    long long kilobytes = -1;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmData: %lld", &kilobytes) == 1)
            break;
    fclose(file);
    assert_true(kilobytes >= 0);
    return (rlim_t)kilobytes * 1024;
}

/* Makes `to` from `from` [count] in a process that gets `most` bytes more than it has. */
static void edit(const char *const *from, size_t count, const char *to, rlim_t most)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        malloc_trim(0); /* what is free is no reserve */
        rlim_t bytes = data_bytes() + most;
        if (memory_is_ours && setrlimit(RLIMIT_DATA, &(struct rlimit){bytes, bytes}) != 0)
            _exit(2);
        sl_status done = count == 1 ? sl_checkpoint_convert(from[0], to, 12 * MEGABYTE)
                                    : sl_checkpoint_average(from, count, to, 12 * MEGABYTE);
        if (done != SL_OK)
            fprintf(stderr, "%s\n", sl_error_text());
        _exit(done != SL_OK);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void large_checkpoints_need_little_memory(void **state)
{
    scratch *dir = *state;
    char paths[3][128], to[128], mean[128];
    const char *from[3];
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/from%d", dir->directory, i);
        from[i] = paths[i];
        write_large(from[i], (float)(3 * i));
    }
    snprintf(to, sizeof to, "%s/converted", dir->directory);
    snprintf(mean, sizeof mean, "%s/mean", dir->directory);
    edit(from, 1, to, 8 * MEGABYTE); /* a tensor has 2 */
    check_large(to, 0);
    edit(from, 3, mean, 12 * MEGABYTE); /* and its sums 4 */
    check_large(mean, 3);
}

static void damaged_checkpoint_is_no_source(void **state)
{
    scratch *dir = *state;
    char good[128], bad[128], file[160], to[128];
    const char *from[] = {good, bad};
    snprintf(good, sizeof good, "%s/good", dir->directory);
    snprintf(bad, sizeof bad, "%s/bad", dir->directory);
    snprintf(to, sizeof to, "%s/to", dir->directory);
    write_large(good, 0);
    write_large(bad, 0);
    snprintf(file, sizeof file, "%s/model.safetensors", bad);
    FILE *damaged = fopen(file, "r+");
    assert_non_null(damaged);
    assert_int_equal(fseek(damaged, 20 * MEGABYTE, SEEK_SET), 0);
    fputc(1, damaged);
    fclose(damaged);
    check_error(sl_checkpoint_convert(bad, to, 0), SL_ERR_FORMAT,
                "model.safetensors: it is damaged");
    check_error(sl_checkpoint_average(from, 2, to, 0), SL_ERR_FORMAT, "it is damaged");
    assert_int_equal(scratch_entries(dir, 0), 2); /* nothing was begun */
}

static int remove_all(void **state)
{
    char line[128];
    scratch *dir = *state;
    snprintf(line, sizeof line, "rm -rf '%s'/*", dir->directory);
    assert_int_equal(system(line), 0);
    return scratch_remove(state);
}

int checkpoint_edit_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(large_checkpoints_need_little_memory, scratch_create,
                                        remove_all),
        cmocka_unit_test_setup_teardown(damaged_checkpoint_is_no_source, scratch_create,
                                        remove_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

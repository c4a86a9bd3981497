/* Checkpoint directories: what is saved comes back, in one file or in shards, and nothing that was
 * damaged in any way is taken for whole. */
#include "scratch.h"

#include "io/checkpoint/format.h"
#include "support/check.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { TENSORS = 5, ELEMENTS = 6 };

typedef struct sample {
    float values[TENSORS][ELEMENTS];
    int64_t numbers[2];
    sl_safetensors_item items[TENSORS + 1];
    sl_metadata note;
    sl_checkpoint_part parts[2];
    sl_checkpoint_file file;
    sl_checkpoint_contents contents;
} sample;

/* Five f32 tensors of 24 bytes and one of i64, which comes first in its file: a part of 136 bytes,
 * and a part of one tensor. */
static void sample_fill(sample *filled, float first)
{
    static const char *const names[TENSORS] = {"0.weight", "0.bias", "1.weight", "1.bias", "2.w"};
    *filled = (sample){.numbers = {7, -7}, .note = {"made", "here"}};
    for (int t = 0; t < TENSORS; t++) {
        for (int i = 0; i < ELEMENTS; i++)
            filled->values[t][i] = first + (float)(10 * t + i);
        filled->items[t] =
            (sl_safetensors_item){names[t], SL_F32, sl_shape_2d(2, 3), filled->values[t]};
    }
    filled->items[TENSORS] =
        (sl_safetensors_item){"numbers", SL_I64, sl_shape_1d(2), filled->numbers};
    filled->parts[0] = (sl_checkpoint_part){"model", filled->items, TENSORS + 1, &filled->note, 1};
    filled->parts[1] = (sl_checkpoint_part){"optimizer", filled->items, 1, NULL, 0};
    filled->file = (sl_checkpoint_file){"model.vocab.txt", "<unk>\nthe\n", 10};
    filled->contents = (sl_checkpoint_contents){.parts = filled->parts,
                                                .part_count = 2,
                                                .files = &filled->file,
                                                .file_count = 1,
                                                .state = "{\"step\":3,\"lr\":0.5}"};
}

/* A checkpoint of that name in the scratch directory. */
static char *save_sample(scratch *dir, const char *name, float first, uint64_t shard_bytes)
{
    sample made;
    sample_fill(&made, first);
    made.contents.shard_bytes = shard_bytes;
    char *path = strdup(scratch_path(dir, name));
    check_ok(sl_checkpoint_save(path, &made.contents));
    return path;
}

static char *file_path(const char *checkpoint, const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    return path;
}

static void remove_checkpoint(char *path)
{
    DIR *open = opendir(path);
    assert_non_null(open);
    for (struct dirent *entry; (entry = readdir(open));)
        if (entry->d_name[0] != '.')
            remove(file_path(path, entry->d_name));
    closedir(open);
    assert_int_equal(rmdir(path), 0);
    free(path);
}

/* Opens, verifies and reads a checkpoint; its error is the thread's. */
static sl_status take(const char *path)
{
    sample back;
    sl_checkpoint_reader *reader;
    sample_fill(&back, -1000);
    SL_TRY(sl_checkpoint_open(path, &reader));
    if (!sl_checkpoint_state(reader)) { /* without state.json a model is left */
        sl_checkpoint_close(&reader);
        return sl_error(SL_ERR_NOT_FOUND, "state.json is not there");
    }
    sl_status status = sl_checkpoint_verify(reader);
    /* Reading finds the same damage by itself. */
    sl_status read = sl_checkpoint_read(reader, "model", back.items, TENSORS + 1);
    if (read == SL_OK)
        read = sl_checkpoint_read(reader, "optimizer", back.items, 1);
    if (status == SL_OK)
        assert_int_equal(read, SL_OK);
    sl_checkpoint_close(&reader);
    return status;
}

static void check_refusal(const char *path, const char *file, const char *reason)
{
    assert_int_equal(take(path), SL_ERR_FORMAT);
    if (!strstr(sl_error_text(), file) || !strstr(sl_error_text(), reason))
        fail_msg("expected \"%s\" and \"%s\" in: %s", file, reason, sl_error_text());
}

/* ---- Round trips -------------------------------------------------------------------------- */

static void check_round_trip(const char *path, size_t files)
{
    sample saved, back;
    sl_checkpoint_reader *reader;
    sample_fill(&saved, 0);
    sample_fill(&back, -1000);
    back.numbers[0] = 0;
    check_ok(sl_checkpoint_open(path, &reader));
    assert_string_equal(sl_checkpoint_state(reader), "{\"step\":3,\"lr\":0.5}");
    double number;
    check_ok(sl_checkpoint_number(reader, "step", &number));
    assert_true(number == 3);
    check_ok(sl_checkpoint_number(reader, "lr", &number));
    assert_true(number == 0.5);
    check_error(sl_checkpoint_number(reader, "epoch", &number), SL_ERR_NOT_FOUND,
                "its state has no number \"epoch\"");
    assert_string_equal(sli_checkpoint_metadata(reader, "model", "made"), "here");
    assert_int_equal(sl_checkpoint_file_count(reader), files);
    assert_int_equal(sl_checkpoint_tensor_count(reader, "model"), TENSORS + 1);
    assert_int_equal(sl_checkpoint_tensor_count(reader, "none"), 0);
    check_ok(sl_checkpoint_verify(reader));
    check_ok(sl_checkpoint_read(reader, "model", back.items, TENSORS + 1));
    assert_memory_equal(back.values, saved.values, sizeof saved.values);
    assert_memory_equal(back.numbers, saved.numbers, sizeof saved.numbers);
    char *text;
    size_t bytes;
    check_ok(sli_checkpoint_read_file(reader, "model.vocab.txt", &text, &bytes));
    assert_int_equal(bytes, 10);
    assert_string_equal(text, "<unk>\nthe\n");
    free(text);
    sl_checkpoint_close(&reader);
}

static void checkpoint_saved_comes_back(void **state)
{
    char *path = save_sample(*state, "whole", 0, 0);
    check_round_trip(path, 3);
    assert_int_equal(access(file_path(path, "model.safetensors"), R_OK), 0);
    assert_int_equal(scratch_entries(*state, 0), 1);
    remove_checkpoint(path);
}

static void part_beyond_the_shard_size_is_cut(void **state)
{
    for (uint64_t limit = 1; limit <= 136; limit += 9) {
        char *path = save_sample(*state, "cut", 0, limit);
        sl_checkpoint_reader *reader;
        check_ok(sl_checkpoint_open(path, &reader));
        size_t count = sl_checkpoint_file_count(reader), shards = 0;
        for (size_t i = 0; i < count; i++) {
            const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, i);
            shards += strncmp(file->name, "model-0", 7) == 0;
        }
        sl_checkpoint_close(&reader);
        /* Five times 24 bytes, then 16, filled greedily. */
        size_t expected = 1;
        uint64_t used = 24;
        for (int t = 1; t <= TENSORS; t++) {
            uint64_t next = t < TENSORS ? 24 : 16;
            expected += used + next > limit;
            used = used + next > limit ? next : used + next;
        }
        assert_int_equal(shards, expected == 1 ? 0 : expected);
        check_round_trip(path, expected == 1 ? 3 : expected + 3);
        remove_checkpoint(path);
    }
}

static void later_checkpoint_takes_the_place_of_the_older(void **state)
{
    char *first = save_sample(*state, "same", 500, 0), *second = save_sample(*state, "same", 0, 30);
    check_round_trip(second, 9);
    assert_int_equal(scratch_entries(*state, 0), 1);
    free(first);
    remove_checkpoint(second);
}

typedef struct replacing {
    scratch *dir;
    atomic_bool ends;
} replacing;

/* With other files each time, and another vocabulary. */
static void *replace_on_and_on(void *arg)
{
    replacing *job = arg;
    for (int i = 0; !atomic_load(&job->ends); i++) {
        sample made;
        sample_fill(&made, (float)i);
        made.contents.shard_bytes = i % 2 ? 30 : 0;
        made.file.data = i % 2 ? "<unk>\none\n" : "<unk>\ntwo\n";
        check_ok(sl_checkpoint_save(scratch_path(job->dir, "exchanged"), &made.contents));
    }
    return NULL;
}

/* What a reader lacks is not damage but another checkpoint's. */
static void checkpoint_that_is_replaced_meanwhile_is_read(void **state)
{
    enum { READINGS = 300 };
    char *path = save_sample(*state, "exchanged", 0, 0);
    replacing job = {.dir = *state};
    pthread_t writer;
    sl_status status = SL_OK;
    assert_int_equal(pthread_create(&writer, NULL, replace_on_and_on, &job), 0);
    for (int i = 0; i < READINGS && status == SL_OK; i++)
        status = take(path);
    atomic_store(&job.ends, true);
    pthread_join(writer, NULL);
    check_ok(status);
    remove_checkpoint(path);
}

static void checkpoint_that_is_replaced_after_opening_is_read(void **state)
{
    sample back, other;
    sl_checkpoint_reader *reader;
    char *path = save_sample(*state, "exchanged", 0, 30), *text;
    size_t bytes;
    sample_fill(&back, -1000);
    sample_fill(&other, 500);
    other.file.data = "<unk>\none\n";
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_save(path, &other.contents));
    check_ok(sl_checkpoint_verify(reader));
    check_ok(sl_checkpoint_read(reader, "model", back.items, TENSORS + 1));
    assert_float_equal(back.values[0][0], 0, 0);
    check_ok(sli_checkpoint_read_file(reader, "model.vocab.txt", &text, &bytes));
    assert_string_equal(text, "<unk>\nthe\n");
    free(text);
    sl_checkpoint_close(&reader);
    remove_checkpoint(path);
}

static sl_status save_another(void *context, const sl_safetensors_item *item, const void **data)
{
    free(save_sample(context, "new", 500, 0));
    *data = item->data;
    return SL_OK;
}

static void what_appears_where_a_new_one_is_written_stays(void **state)
{
    sample made, back;
    sl_checkpoint_reader *reader;
    char *path = strdup(scratch_path(*state, "new"));
    const sli_item_source source = {save_another, *state};
    sample_fill(&made, 0);
    sample_fill(&back, -1000);
    check_error(sli_checkpoint_write(path, &made.contents,
                                     &(sli_checkpoint_writing){.source = &source, .is_new = true}),
                SL_ERR_IO, "new: cannot be given its name: ");
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_read(reader, "optimizer", back.items, 1));
    assert_float_equal(back.values[0][0], 500, 0);
    sl_checkpoint_close(&reader);
    assert_int_equal(scratch_entries(*state, 0), 1);
    remove_checkpoint(path);
}

static void checksum_is_the_xxh128_of_the_file(void **state)
{
    char *path = save_sample(*state, "sums", 0, 0), text[4096], sum[SLI_CHECKSUM_BYTES];
    sl_checkpoint_reader *reader;
    check_ok(sl_checkpoint_open(path, &reader));
    for (size_t i = 0; i < sl_checkpoint_file_count(reader); i++) {
        const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, i);
        size_t bytes = read_file(file_path(path, file->name), text, sizeof text);
        assert_int_equal(bytes, file->bytes);
        assert_string_equal(sli_checksum_of(text, bytes, sum), file->checksum);
    }
    sl_checkpoint_close(&reader);
    /* xxh128sum of the empty file and of "abc" */
    assert_string_equal(sli_checksum_of("", 0, sum), "99aa06d3014798d86001c324468d497f");
    assert_string_equal(sli_checksum_of("abc", 3, sum), "06b05ab6733a618578af5f94892f3950");
    remove_checkpoint(path);
}

/* ---- Damage ------------------------------------------------------------------------------- */

static const char *const files[] = {"model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors",
                                    "model.safetensors.index.json",
                                    "optimizer.safetensors",
                                    "model.vocab.txt",
                                    "state.json"};
enum { FILES = sizeof files / sizeof *files, CUT = 100 };

static void every_changed_byte_is_found(void **state)
{
    char *path = save_sample(*state, "flipped", 0, CUT), bytes[8192];
    check_ok(take(path));
    for (int f = 0; f < FILES; f++) {
        char *name = file_path(path, files[f]);
        size_t count = read_file(name, bytes, sizeof bytes);
        for (size_t i = 0; i < count; i++) {
            char kept = bytes[i];
            bytes[i] ^= (char)(1 << i % 8);
            write_file(file_path(path, files[f]), bytes, count);
            /* JSON means the same with another kind of white space. */
            if (take(path) != SL_ERR_FORMAT &&
                (strcmp(files[f], "state.json") != 0 || !strchr(" \n\t\r", kept)))
                fail_msg("byte %zu of %s was changed and taken", i, files[f]);
            bytes[i] = kept;
        }
        write_file(file_path(path, files[f]), bytes, count);
    }
    check_ok(take(path));
    remove_checkpoint(path);
}

static void every_cut_and_every_missing_file_is_found(void **state)
{
    char *path = save_sample(*state, "cut", 0, CUT), bytes[8192];
    for (int f = 0; f < FILES; f++) {
        size_t count = read_file(file_path(path, files[f]), bytes, sizeof bytes);
        for (size_t kept = 0; kept < count; kept++) {
            write_file(file_path(path, files[f]), bytes, kept);
            assert_int_equal(take(path), SL_ERR_FORMAT);
            assert_non_null(strstr(sl_error_text(), files[f]));
        }
        assert_int_equal(remove(file_path(path, files[f])), 0);
        assert_int_equal(take(path), f == FILES - 1 ? SL_ERR_NOT_FOUND : SL_ERR_FORMAT);
        assert_non_null(strstr(sl_error_text(), files[f]));
        write_file(file_path(path, files[f]), bytes, count);
    }
    check_ok(take(path));
    remove_checkpoint(path);
}

static void copy(const char *from, const char *to, const char *name)
{
    char bytes[8192];
    size_t count = read_file(file_path(from, name), bytes, sizeof bytes);
    write_file(file_path(to, name), bytes, count);
}

static void file_of_another_checkpoint_is_refused(void **state)
{
    char *one = save_sample(*state, "one", 0, CUT), *other = save_sample(*state, "other", 1, CUT);
    copy(other, one, "optimizer.safetensors");
    check_refusal(one, "optimizer.safetensors", "another checkpoint's file");
    copy(other, one, "state.json");
    check_refusal(one, "model-00001-of-00002.safetensors", "another checkpoint's file");
    remove_checkpoint(one);
    remove_checkpoint(other);
}

static void reasons_are_said(void **state)
{
    char *path = save_sample(*state, "said", 0, 0), bytes[8192];
    size_t count = read_file(file_path(path, "model.safetensors"), bytes, sizeof bytes);
    bytes[count - 1] ^= 1;
    write_file(file_path(path, "model.safetensors"), bytes, count);
    check_refusal(path, "model.safetensors", "it is damaged: its checksum is ");
    write_file(file_path(path, "model.safetensors"), bytes, count - 1);
    check_refusal(path, "model.safetensors", "it was cut short");
    remove(file_path(path, "model.safetensors"));
    check_refusal(path, "model.safetensors", "state.json names it, but it cannot be found");
    remove_checkpoint(path);
}

/* ---- What is asked for -------------------------------------------------------------------- */

static void tensors_that_do_not_fit_are_named(void **state)
{
    char *path = save_sample(*state, "fit", 0, 0);
    sample back;
    sl_checkpoint_reader *reader;
    check_ok(sl_checkpoint_open(path, &reader));
    sample_fill(&back, -1000);
    assert_int_equal(sl_checkpoint_read(reader, "model", back.items, TENSORS), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), "it has 1 unexpected tensors (\"numbers\")"));
    back.items[1].shape = sl_shape_2d(3, 2);
    assert_int_equal(sl_checkpoint_read(reader, "model", back.items, TENSORS + 1), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), "\"0.bias\" should be F32 [3, 2], but is F32 [2, 3]"));
    assert_int_equal(sl_checkpoint_read(reader, "optimizer", back.items + 2, 1), SL_ERR_INVALID);
    back.items[1].name = "3.weight";
    assert_int_equal(sl_checkpoint_read(reader, "optimizer", back.items, 2), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), "it lacks 1 of the 2 tensors expected (\"3.weight\")"));
    assert_int_equal(sl_checkpoint_read(reader, "best", back.items, 1), SL_ERR_NOT_FOUND);
    assert_float_equal(back.values[0][0], -1000, 0);
    sl_checkpoint_close(&reader);
    remove_checkpoint(path);
}

static sl_device *odd_modules(void *context, const char *name)
{
    sl_device **devices = context;
    return name[0] == 'n' ? NULL : devices[(name[0] - '0') % 2];
}

static void tensors_go_to_the_devices_of_the_map(void **state)
{
    char *path = save_sample(*state, "map", 0, CUT);
    sl_device *devices[2] = {0};
    sl_checkpoint_reader *reader;
    sl_checkpoint_tensor *tensors;
    sl_memory_stats used;
    size_t count;
    check_ok(sl_device_create_cpu(1, &devices[0]));
    check_ok(sl_device_create_cpu(1, &devices[1]));
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_load(reader, "model", odd_modules, devices, &tensors, &count));
    assert_int_equal(count, TENSORS);
    for (size_t i = 0; i < count; i++) {
        int at = (tensors[i].name[0] - '0') % 2;
        assert_ptr_equal(sl_tensor_device(tensors[i].tensor), devices[at]);
        assert_float_equal(sl_tensor_f32(tensors[i].tensor)[5], 10.0 * (double)i + 5, 0);
    }
    sl_checkpoint_tensors_destroy(&tensors, count);
    /* Devices that the map does not name are not touched. */
    sl_device *first_only[2] = {devices[0], NULL};
    sl_device_reset_peak(devices[1]);
    check_ok(sl_checkpoint_load(reader, "model", odd_modules, first_only, &tensors, &count));
    assert_int_equal(count, 3);
    sl_device_memory(devices[1], &used);
    assert_int_equal(used.peak_total_bytes, 0);
    sl_checkpoint_tensors_destroy(&tensors, count);
    sl_checkpoint_close(&reader);
    sl_device_destroy(&devices[0]);
    sl_device_destroy(&devices[1]);
    remove_checkpoint(path);
}

/* ---- What cannot be saved ----------------------------------------------------------------- */

static void nothing_but_a_checkpoint_is_replaced(void **state)
{
    static const char another[] =
        "it exists and is not a checkpoint: move it away, or save elsewhere";
    scratch *dir = *state;
    sample made;
    sample_fill(&made, 0);
    char *path = strdup(scratch_path(dir, "mine"));
    write_file(path, "x", 1);
    check_error(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID, another);
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("/dev", path), 0);
    check_error(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID, another);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    write_file(file_path(path, "letter"), "x", 1);
    check_error(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID, another);
    assert_int_equal(access(file_path(path, "letter"), F_OK), 0);
    assert_int_equal(remove(file_path(path, "letter")), 0);
    check_ok(sl_checkpoint_save(path, &made.contents)); /* into the empty one */
    remove_checkpoint(path);
    assert_int_equal(sl_checkpoint_save(scratch_path(dir, "no/where"), &made.contents),
                     SL_ERR_NOT_FOUND);
    assert_int_equal(scratch_entries(dir, 0), 0);
}

static void impossible_contents_are_refused(void **state)
{
    sample made;
    char *path = scratch_path(*state, "never");
    sample_fill(&made, 0);
    made.parts[1].name = "mod/el";
    assert_int_equal(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID);
    made.parts[1].name = "model";
    check_error(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID,
                "part \"model\" is listed twice");
    made.parts[1].name = "optimizer";
    made.file.name = "state.json";
    assert_int_equal(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID);
    made.file.name = "a";
    made.contents.state = "[1]";
    assert_int_equal(sl_checkpoint_save(path, &made.contents), SL_ERR_INVALID);
    assert_int_equal(scratch_entries(*state, 0), 0);
}

/* Neither to be saved nor in a state.json, whose checksum is right, with one part too many. */
static void more_parts_than_there_can_be_are_refused(void **state)
{
    enum { MOST = SL_CHECKPOINT_MOST_PARTS };
    float value = 1;
    const sl_safetensors_item item = {"a", SL_F32, sl_shape_1d(1), &value};
    char names[MOST + 1][16], bytes[4096], *text;
    sl_checkpoint_part parts[MOST + 1];
    sl_checkpoint_contents contents = {.parts = parts, .part_count = MOST + 1};
    sl_checkpoint_reader *reader;
    json_t *listed = json_array();
    char *path = strdup(scratch_path(*state, "parts"));
    for (int i = 0; i <= MOST; i++) {
        snprintf(names[i], sizeof names[i], "p%d", i);
        parts[i] = (sl_checkpoint_part){.name = names[i], .items = &item, .count = 1};
    }
    check_error(sl_checkpoint_save(path, &contents), SL_ERR_INVALID, "at most 64 parts, got 65");
    contents.part_count = MOST;
    check_ok(sl_checkpoint_save(path, &contents));
    check_ok(sl_checkpoint_open(path, &reader));
    size_t count = read_file(file_path(path, "p0.safetensors"), bytes, sizeof bytes);
    write_file(file_path(path, "p64.safetensors"), bytes, count);
    for (int i = 0; i <= MOST; i++) {
        const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, (size_t)i % MOST);
        snprintf(bytes, sizeof bytes, "%s.safetensors", names[i]);
        json_array_append_new(listed,
                              json_pack("{ss ss sI ss}", "name", bytes, "part", names[i], "bytes",
                                        (json_int_t)file->bytes, "xxh128", file->checksum));
    }
    check_ok(sli_checkpoint_state_print(reader->state.id, "{}", listed, &text));
    sl_checkpoint_close(&reader);
    write_file(file_path(path, "state.json"), text, strlen(text));
    check_refusal(path, "parts", "its files belong to more than 64 parts");
    json_decref(listed);
    free(text);
    remove_checkpoint(path);
}

int checkpoint_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(checkpoint_saved_comes_back),
        WITH_SCRATCH(part_beyond_the_shard_size_is_cut),
        WITH_SCRATCH(later_checkpoint_takes_the_place_of_the_older),
        WITH_SCRATCH(checkpoint_that_is_replaced_meanwhile_is_read),
        WITH_SCRATCH(checkpoint_that_is_replaced_after_opening_is_read),
        WITH_SCRATCH(what_appears_where_a_new_one_is_written_stays),
        WITH_SCRATCH(checksum_is_the_xxh128_of_the_file),
        WITH_SCRATCH(every_changed_byte_is_found),
        WITH_SCRATCH(every_cut_and_every_missing_file_is_found),
        WITH_SCRATCH(file_of_another_checkpoint_is_refused),
        WITH_SCRATCH(reasons_are_said),
        WITH_SCRATCH(tensors_that_do_not_fit_are_named),
        WITH_SCRATCH(tensors_go_to_the_devices_of_the_map),
        WITH_SCRATCH(nothing_but_a_checkpoint_is_replaced),
        WITH_SCRATCH(impossible_contents_are_refused),
        WITH_SCRATCH(more_parts_than_there_can_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

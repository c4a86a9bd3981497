/* A checkpoint that several write, none of whom has the whole of a tensor: its readers see whole
 * tensors, and nothing that does not fit together is taken for one. */
#include "scratch.h"

#include "io/checkpoint/reader.h"
#include "io/checkpoint/slices.h"
#include "io/checkpoint/writer.h"
#include "support/check.h"

#include <sys/stat.h>

enum { WRITERS = 3, ROWS = 4, COLUMNS = 5, ELEMENTS = ROWS * COLUMNS, ID = 0x1234 };

/* "a" in slices of 8, 8 and 4 elements, and "b" [2], which writer 1 has. */
typedef struct shared {
    float a[ELEMENTS], b[2];
    sl_safetensors_item items[WRITERS + 1];
    int writer_of[WRITERS + 1];
    char *metadata_text;
    sl_metadata note;
    sl_checkpoint_part part;
    sli_checkpoint_plan plan;
    sli_checkpoint_share share;
    sli_checkpoint_file written[WRITERS + 1];
} shared;

static void shared_fill(shared *to, uint64_t shard_bytes)
{
    const sli_sliced_tensor cut = {"a", sl_shape_2d(ROWS, COLUMNS)};
    *to = (shared){.b = {-1, -2}, .writer_of = {0, 1, 1, 2}};
    for (int i = 0; i < ELEMENTS; i++)
        to->a[i] = (float)i;
    to->items[0] = (sl_safetensors_item){"a@0", SL_F32, sl_shape_1d(8), to->a};
    to->items[1] = (sl_safetensors_item){"a@8", SL_F32, sl_shape_1d(8), to->a + 8};
    to->items[2] = (sl_safetensors_item){"b", SL_F32, sl_shape_1d(2), to->b};
    to->items[3] = (sl_safetensors_item){"a@16", SL_F32, sl_shape_1d(4), to->a + 16};
    check_ok(sli_slices_print(&cut, 1, &to->metadata_text));
    to->note = (sl_metadata){SLI_SLICES_KEY, to->metadata_text};
    to->part = (sl_checkpoint_part){"optimizer", to->items, WRITERS + 1, &to->note, 1};
    check_ok(sli_checkpoint_plan_create(&to->part, to->writer_of, shard_bytes, &to->plan));
    to->share = (sli_checkpoint_share){&to->part, &to->plan, NULL};
}

static void shared_clear(shared *of)
{
    sli_checkpoint_plan_clear(&of->plan);
    free(of->metadata_text);
}

static void write_own(shared *from, const char *path, int self)
{
    size_t count, first = sli_checkpoint_plan_first(&from->plan, self, &count);
    sli_checkpoint_writer *writer;
    check_ok(sli_checkpoint_writer_join(path, ID, &writer));
    check_ok(sli_checkpoint_writer_write_own(writer, &from->share, self, from->written + first));
    sli_checkpoint_writer_destroy(&writer);
}

/* By all writers, the first one of them coming last; its end is the result. */
static sl_status save_shared(shared *from, const char *path)
{
    const sl_checkpoint_file vocab = {"model.vocab.txt", "the\n", 4};
    sli_checkpoint_writer *writer;
    write_own(from, path, 2);
    write_own(from, path, 1);
    check_ok(sli_checkpoint_writer_create(path, ID, &writer));
    sl_status status =
        sli_checkpoint_writer_add(writer,
                                  &(sl_checkpoint_contents){.files = &vocab, .file_count = 1});
    if (status == SL_OK)
        status = sli_checkpoint_writer_write_own(writer, &from->share, 0, from->written);
    if (status == SL_OK)
        status = sli_checkpoint_writer_list_all(writer, &from->share, from->written);
    if (status == SL_OK)
        status = sli_checkpoint_writer_commit(writer, "{\"step\":1}");
    sli_checkpoint_writer_destroy(&writer);
    return status;
}

static void remove_tree(const char *path)
{
    char line[700];
    snprintf(line, sizeof line, "rm -r '%s'", path);
    assert_int_equal(system(line), 0);
}

/* ---- Whole ---------------------------------------------------------------------------------- */

static void check_whole(const char *path)
{
    float a[ELEMENTS], b[2];
    const sl_safetensors_item items[] = {{"b", SL_F32, sl_shape_1d(2), b},
                                         {"a", SL_F32, sl_shape_2d(ROWS, COLUMNS), a}};
    sl_checkpoint_reader *reader;
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_verify(reader));
    assert_int_equal(sl_checkpoint_tensor_count(reader, "optimizer"), 2);
    check_ok(sl_checkpoint_read(reader, "optimizer", items, 2));
    for (int i = 0; i < ELEMENTS; i++)
        assert_float_equal(a[i], i, 0);
    assert_float_equal(b[1], -2, 0);
    const sl_safetensors_info *joined = sl_checkpoint_tensor_get(reader, "optimizer", 1);
    assert_string_equal(joined->name, "a");
    assert_int_equal(joined->dims, 2);
    assert_int_equal(joined->size[1], COLUMNS);
    assert_int_equal(joined->bytes, sizeof a);
    sl_checkpoint_close(&reader);
}

static void slices_of_several_writers_are_whole_tensors_to_readers(void **state)
{
    char path[512], other[512];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "saved"));
    snprintf(other, sizeof other, "%s", scratch_path(*state, "converted"));
    for (uint64_t limit = 0; limit < 40; limit += 13) {
        shared made;
        shared_fill(&made, limit);
        check_ok(save_shared(&made, path));
        assert_int_equal(made.plan.files, limit == 0 ? 3 : 4);
        check_whole(path);
        check_ok(sl_checkpoint_convert(path, other, 0));
        check_whole(other);
        assert_int_equal(access(scratch_path(*state, "converted/optimizer.safetensors"), F_OK), 0);
        remove_tree(path);
        remove_tree(other);
        shared_clear(&made);
    }
    assert_int_equal(scratch_entries(*state, 0), 0);
}

static sl_device *only_a(void *context, const char *name)
{
    return name[0] == 'a' ? context : NULL;
}

static void slices_go_to_a_device_as_one_tensor(void **state)
{
    shared made;
    sl_device *device;
    sl_checkpoint_reader *reader;
    sl_checkpoint_tensor *tensors;
    size_t count;
    char *path = scratch_path(*state, "saved");
    shared_fill(&made, 0);
    check_ok(save_shared(&made, path));
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_load(reader, "optimizer", only_a, device, &tensors, &count));
    assert_int_equal(count, 1);
    assert_memory_equal(sl_tensor_f32(tensors[0].tensor), made.a, sizeof made.a);
    sl_checkpoint_tensors_destroy(&tensors, count);
    sl_checkpoint_close(&reader);
    sl_device_destroy(&device);
    remove_tree(path);
    shared_clear(&made);
}

/* Any range of "a", whatever slices the files have. */
static void any_slice_is_read(void **state)
{
    shared made;
    sl_checkpoint_reader *reader;
    char *path = scratch_path(*state, "saved");
    shared_fill(&made, 0);
    check_ok(save_shared(&made, path));
    check_ok(sl_checkpoint_open(path, &reader));
    for (int begin = 0; begin <= ELEMENTS; begin++)
        for (int count = 0; count <= ELEMENTS - begin; count++) {
            float a[ELEMENTS + 1], b[2] = {7, 7};
            for (int i = 0; i <= ELEMENTS; i++)
                a[i] = -9;
            const sli_checkpoint_slice slices[] = {
                {"b", SL_F32, sl_shape_1d(2), 1, 1, b},
                {"a", SL_F32, sl_shape_2d(ROWS, COLUMNS), begin, count, a},
            };
            check_ok(sli_checkpoint_read_slices(reader, "optimizer", slices, 2));
            for (int i = 0; i <= ELEMENTS; i++)
                assert_float_equal(a[i], i < count ? begin + i : -9, 0);
            assert_float_equal(b[0], -2, 0);
            assert_float_equal(b[1], 7, 0);
        }
    sl_checkpoint_close(&reader);
    remove_tree(path);
    shared_clear(&made);
}

/* Of the three files one is wanted, and only that one's damage matters. */
static void files_without_anything_wanted_are_not_read(void **state)
{
    shared made;
    sl_checkpoint_reader *reader;
    float a[8];
    const sli_checkpoint_slice slices[] = {{"b", SL_F32, sl_shape_1d(2), 0, 0, NULL},
                                           {"a", SL_F32, sl_shape_2d(ROWS, COLUMNS), 0, 8, a}};
    char path[512], file[600];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "saved"));
    shared_fill(&made, 0);
    check_ok(save_shared(&made, path));
    for (int damaged = 3; damaged >= 1; damaged -= 2) {
        snprintf(file, sizeof file, "%s/optimizer-%05d-of-00003.safetensors", path, damaged);
        FILE *open = fopen(file, "r+b");
        assert_non_null(open);
        assert_int_equal(fseek(open, -1, SEEK_END), 0);
        assert_int_not_equal(fputc(1, open), EOF);
        assert_int_equal(fclose(open), 0);
        check_ok(sl_checkpoint_open(path, &reader));
        sl_status status = sli_checkpoint_read_slices(reader, "optimizer", slices, 2);
        assert_int_equal(status, damaged == 1 ? SL_ERR_FORMAT : SL_OK);
        sl_checkpoint_close(&reader);
    }
    remove_tree(path);
    shared_clear(&made);
}

/* ---- Not whole ------------------------------------------------------------------------------ */

static void files_that_cannot_be_seen_fail_the_save(void **state)
{
    shared made;
    sli_checkpoint_writer *writer;
    char *path = scratch_path(*state, "saved");
    shared_fill(&made, 0);
    check_ok(sli_checkpoint_writer_create(path, ID, &writer));
    check_ok(sli_checkpoint_writer_write_own(writer, &made.share, 0, made.written));
    check_error(sli_checkpoint_writer_list_all(writer, &made.share, made.written), SL_ERR_IO,
                "another rank has written it, but it cannot be seen");
    write_own(&made, path, 1);
    write_own(&made, path, 2);
    made.written[2].bytes++;
    check_error(sli_checkpoint_writer_list_all(writer, &made.share, made.written), SL_ERR_IO,
                "another rank has written ");
    sli_checkpoint_writer_destroy(&writer);
    assert_int_equal(scratch_entries(*state, 0), 0);
    shared_clear(&made);
}

/* A checkpoint of these items, opened; its error is the thread's. */
static sl_status open_items(scratch *in, const sl_safetensors_item *items, size_t count,
                            const char *note)
{
    char path[512];
    const sl_metadata shapes = {SLI_SLICES_KEY, note};
    const sl_checkpoint_part part = {"optimizer", items, count, &shapes, 1};
    sl_checkpoint_reader *reader;
    snprintf(path, sizeof path, "%s", scratch_path(in, "saved"));
    check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &part, .part_count = 1}));
    sl_status status = sl_checkpoint_open(path, &reader);
    sl_checkpoint_close(&reader);
    remove_tree(path);
    return status;
}

static void slices_that_do_not_make_up_their_tensor_are_refused(void **state)
{
    float values[8] = {0};
    int64_t numbers[8] = {0};
    const sl_safetensors_item first = {"a@0", SL_F32, sl_shape_1d(4), values},
                              second = {"a@4", SL_F32, sl_shape_1d(4), values},
                              late = {"a@5", SL_F32, sl_shape_1d(3), values},
                              early = {"a@3", SL_F32, sl_shape_1d(5), values},
                              other = {"a@4", SL_I64, sl_shape_1d(4), numbers},
                              flat = {"a@4", SL_F32, sl_shape_2d(2, 2), values},
                              whole = {"a", SL_F32, sl_shape_2d(2, 4), values},
                              plain = {"a@x", SL_F32, sl_shape_1d(1), values};
    const char *const note = "{\"a\":[2,4]}";
    check_ok(open_items(*state, (sl_safetensors_item[]){first, second}, 2, note));
    check_ok(open_items(*state, (sl_safetensors_item[]){first, second, plain}, 3, note));
    check_ok(open_items(*state, (sl_safetensors_item[]){first, late}, 2, "{}")); /* mere names */
    check_error(open_items(*state, &first, 1, note), SL_ERR_FORMAT,
                "tensor \"a\" has 8 elements, but its slices have 4");
    check_error(open_items(*state, &second, 1, note), SL_ERR_FORMAT, "end at element 0 of 8");
    check_error(open_items(*state, (sl_safetensors_item[]){first, late}, 2, note), SL_ERR_FORMAT,
                "slice \"a@5\" has 3 elements, but the slices before it end at element 4 of 8");
    check_error(open_items(*state, (sl_safetensors_item[]){first, early}, 2, note), SL_ERR_FORMAT,
                "slice \"a@3\" has 5 elements, but the slices before it end at element 4 of 8");
    check_error(open_items(*state, (sl_safetensors_item[]){first, second}, 2, "{\"a\":[7]}"),
                SL_ERR_FORMAT, "element 4 of 7");
    check_error(open_items(*state, (sl_safetensors_item[]){first, other}, 2, note), SL_ERR_FORMAT,
                "no slice of the same tensor");
    check_error(open_items(*state, (sl_safetensors_item[]){first, flat}, 2, note), SL_ERR_FORMAT,
                "no slice of the same tensor");
    check_error(open_items(*state, (sl_safetensors_item[]){first, second, whole}, 3, note),
                SL_ERR_FORMAT, "tensor \"a\" is there whole and in slices");
}

static void metadata_without_shapes_is_refused(void **state)
{
    static const char *const metadata[] = {"",
                                           "[]",
                                           "{\"a\":4}",
                                           "{\"a\":[2,0]}",
                                           "{\"a\":[2,-4]}",
                                           "{\"a\":[2.0]}",
                                           "{\"a\":[1,1,1,1,1]}",
                                           "{\"a\":[4294967296,4294967296]}",
                                           "{\"a\":[1],\"a\":[1]}"};
    float value = 0;
    const sl_safetensors_item item = {"b", SL_F32, sl_shape_1d(1), &value};
    for (size_t i = 0; i < sizeof metadata / sizeof *metadata; i++)
        check_error(open_items(*state, &item, 1, metadata[i]), SL_ERR_FORMAT, "sluice.slices");
}

static void writer_without_items_has_no_file(void **state)
{
    (void)state;
    const sl_safetensors_item items[] = {{"a", SL_F32, sl_shape_1d(3), NULL},
                                         {"b", SL_I64, sl_shape_1d(3), NULL},
                                         {"c", SL_F32, sl_shape_1d(3), NULL}};
    const sl_checkpoint_part part = {"optimizer", items, 3, NULL, 0},
                             none = {"optimizer", NULL, 0, NULL, 0};
    sli_checkpoint_plan plan;
    size_t count;
    check_ok(sli_checkpoint_plan_create(&part, (int[]){0, 0, 2}, 0, &plan));
    assert_int_equal(plan.files, 2);
    assert_int_equal(sli_checkpoint_plan_first(&plan, 1, &count), 1);
    assert_int_equal(count, 0);
    assert_int_equal(sli_checkpoint_plan_first(&plan, 2, &count), 1);
    assert_int_equal(count, 1);
    assert_string_equal(plan.names[1], "optimizer-00002-of-00002.safetensors");
    assert_string_equal(plan.items[0].name, "b"); /* larger elements first, of each writer's */
    assert_string_equal(plan.items[2].name, "c");
    sli_checkpoint_plan_clear(&plan);
    check_ok(sli_checkpoint_plan_create(&none, NULL, 0, &plan));
    assert_int_equal(plan.files, 1);
    sli_checkpoint_plan_clear(&plan);
}

static void names_of_slices_are_found(void **state)
{
    (void)state;
    sli_slices cut;
    int64_t offset = -1;
    char *name;
    check_ok(sli_slices_parse("{\"b@1\":[9],\"a\":[3],\"ab\":[7]}", &cut));
    check_ok(sli_slice_name("ab", 12, &name));
    assert_string_equal(name, "ab@12");
    assert_int_equal(sli_slices_find(&cut, name, &offset)->shape.size[0], 7);
    assert_int_equal(offset, 12);
    free(name);
    assert_int_equal(sli_slices_find(&cut, "b@1@0", &offset)->shape.size[0], 9);
    static const char *const others[] = {"a",   "a@",  "a@-1",  "a@01", "a@1x",
                                         "b@0", "c@0", "abc@0", "@0",   "a@99999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_null(sli_slices_find(&cut, others[i], &offset));
    sli_slices_clear(&cut);
}

int checkpoint_writer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slices_of_several_writers_are_whole_tensors_to_readers,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(slices_go_to_a_device_as_one_tensor, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(any_slice_is_read, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(files_without_anything_wanted_are_not_read, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(files_that_cannot_be_seen_fail_the_save, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(slices_that_do_not_make_up_their_tensor_are_refused,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(metadata_without_shapes_is_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(writer_without_items_has_no_file),
        cmocka_unit_test(names_of_slices_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
